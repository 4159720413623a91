#include "train/parallel/data_parallel.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <chrono>
#include <deque>

#include "train/comm/memory.h"

namespace yoke {

struct DataParallel::Hooks {
  // A unit on its way.
  struct Reduction {
    int unit = 0;
    WorkPtr work;
    at::Tensor gradients;  // of the whole unit, stages 2 and 3
    at::Tensor sum;        // what is to be added to the shard, if it does not arrive there
  };
  // Buffers of whole units that may be under way in stages 2 and 3.
  static constexpr std::size_t most_under_way = 2;

  FlatParameters* flat;
  std::vector<c10::intrusive_ptr<torch::autograd::Node>> accumulators;  // keeps the hooked nodes alive
  bool alive = true;
  bool reducing = false, last = false;
  bool fresh = true;             // the shards hold nothing yet (stages 2 and 3)
  std::vector<bool> arrived;     // by entry
  std::vector<int> outstanding;  // by unit
  int next_unit = -1;            // to be started; from the last to the first
  std::deque<Reduction> under_way;
  std::optional<Error> error;
  std::function<Result<void>(int)> announce;

  bool keeps_whole() const { return flat->zero() < 2; }

  void begin(bool last_one) {
    last = last_one;
    reducing = last || !keeps_whole();
    arrived.assign(flat->entries().size(), false);
    outstanding.clear();
    for (const ShardUnit& unit : flat->map().units) outstanding.push_back(unit.trainable ? unit.entries : 0);
    next_unit = flat->unit_count() - 1;
  }

  void gradient_ready(std::size_t entry) {
    // A backward that nobody announced: autograd keeps accumulating in .grad until one is.
    if (!reducing && !keeps_whole()) return;
    flat->collect_gradient(flat->entries()[entry]);
    if (!reducing || arrived[entry]) return;
    arrived[entry] = true;
    --outstanding[static_cast<std::size_t>(flat->entries()[entry].place.unit)];
    start_full_units();
  }

  void start_full_units() {
    for (; next_unit >= 0 && outstanding[static_cast<std::size_t>(next_unit)] == 0; --next_unit)
      if (!error && flat->map().units[static_cast<std::size_t>(next_unit)].trainable)
        if (auto started = announce ? start_announced(next_unit) : start(next_unit); !started) error = started.error();
  }

  Result<void> start_announced(int unit) {
    YOKE_TRY_VOID(announce(unit));
    YOKE_TRY_VOID(start(unit));
    return complete_all();
  }

  Result<void> start(int unit) {
    at::NoGradGuard no_grad;
    DataGroups groups = flat->groups();
    std::string name = fmt::format("gradients, unit {}", unit);
    Reduction r{unit};
    if (keeps_whole()) {
      if (groups.shard->size() > 1) {
        YOKE_TRY(r.work, groups.shard->reduce_scatter(name, flat->gradient_shard(unit), flat->gradients(unit)));
      } else if (groups.replica->size() > 1) {
        YOKE_TRY(r.work, groups.replica->all_reduce(name, flat->gradients(unit)));
      } else {
        return {};
      }
    } else {
      while (under_way.size() >= most_under_way) YOKE_TRY_VOID(complete_oldest());
      r.gradients = flat->take_gradients(unit);
      r.sum = flat->gradient_shard(unit);
      if (!fresh) {
        MemoryScope scope(MemoryPart::communication);
        r.sum = at::empty_like(r.sum);
      }
      YOKE_TRY(r.work, groups.shard->reduce_scatter(name, r.sum, r.gradients));
    }
    under_way.push_back(std::move(r));
    return {};
  }

  Result<void> complete_oldest() {
    at::NoGradGuard no_grad;
    Reduction r = std::move(under_way.front());
    under_way.pop_front();
    YOKE_TRY_VOID(r.work->wait());
    const at::Tensor& shard = flat->gradient_shard(r.unit);
    if (r.sum.defined() && !r.sum.is_same(shard)) shard.add_(r.sum);
    return {};
  }

  Result<void> complete_all() {
    while (!under_way.empty()) YOKE_TRY_VOID(complete_oldest());
    return {};
  }

  Result<void> take_part(int unit) {
    if (!keeps_whole()) flat->zero_missing(unit, arrived);
    for (std::size_t i = 0; i < arrived.size(); ++i)
      if (flat->entries()[i].place.unit == unit) gradient_ready(i);
    if (error) return tl::unexpected(*std::exchange(error, std::nullopt));
    return complete_all();
  }

  // Sums the shards over the copies.
  Result<void> reduce_copies() {
    DataGroups groups = flat->groups();
    if (groups.replica->size() == 1 || (groups.shard->size() == 1 && keeps_whole())) return {};  // none, or done
    std::vector<WorkPtr> works;
    for (int u = flat->unit_count() - 1; u >= 0; --u) {
      if (!flat->gradient_shard(u).defined()) continue;
      YOKE_TRY(WorkPtr work, groups.replica->all_reduce(fmt::format("shards, unit {}", u), flat->gradient_shard(u)));
      works.push_back(std::move(work));
    }
    for (WorkPtr& work : works) YOKE_TRY_VOID(work->wait());
    return {};
  }

  Result<void> finish() {
    for (int u = flat->unit_count() - 1; u >= 0; --u)
      if (outstanding[static_cast<std::size_t>(u)] > 0 && !keeps_whole()) flat->zero_missing(u, arrived);
    for (std::size_t i = 0; i < arrived.size(); ++i)
      if (!arrived[i] && flat->entries()[i].parameter.requires_grad()) gradient_ready(i);
    reducing = false;
    if (error) return tl::unexpected(*std::exchange(error, std::nullopt));
    YOKE_TRY_VOID(complete_all());
    fresh = last;
    if (last) YOKE_TRY_VOID(reduce_copies());
    return {};
  }
};

namespace {

class ReadyHook final : public torch::autograd::FunctionPostHook {
 public:
  explicit ReadyHook(std::function<void()> ready) : ready_(std::move(ready)) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& outputs,
                                            const torch::autograd::variable_list&) override {
    ready_();
    return outputs;
  }

 private:
  std::function<void()> ready_;
};

}  // namespace

DataParallel::DataParallel(FlatParameters& flat) : hooks_(std::make_shared<Hooks>()) {
  hooks_->flat = &flat;
  for (std::size_t i = 0; i < flat.entries().size(); ++i) {
    if (!flat.entries()[i].parameter.requires_grad()) continue;
    auto node = torch::autograd::impl::grad_accumulator(flat.entries()[i].parameter);
    // Fires after the gradient has been accumulated, also when there was none to accumulate because a function of ours
    // did it in place.
    node->add_post_hook(std::make_unique<ReadyHook>([hooks = hooks_, i] {
      if (hooks->alive) hooks->gradient_ready(i);
    }));
    hooks_->accumulators.push_back(std::move(node));
  }
}

DataParallel::~DataParallel() {
  hooks_->alive = false;
  hooks_->accumulators.clear();
}

void DataParallel::begin_backward(bool last) { hooks_->begin(last); }

void DataParallel::announce(std::function<Result<void>(int unit)> before) { hooks_->announce = std::move(before); }

Result<void> DataParallel::take_part(int unit) { return hooks_->take_part(unit); }

Result<Seconds> DataParallel::finish_backward() {
  if (!hooks_->reducing) return Seconds(0);
  auto began = std::chrono::steady_clock::now();
  YOKE_TRY_VOID(hooks_->finish());
  return Seconds(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
}

}  // namespace yoke
