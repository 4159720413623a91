#include "train/parallel/data_parallel.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <chrono>

namespace yoke {

BucketPlan plan_buckets(const std::vector<FlatEntry>& entries, std::int64_t bytes_per_element,
                        const BucketOptions& options) {
  BucketPlan plan;
  plan.bucket_of.resize(entries.size());
  double room = 0;
  for (std::size_t i = entries.size(); i-- > 0;) {
    auto bytes = static_cast<double>(entries[i].numel * bytes_per_element);
    // A bucket is closed when it has reached its size, or when the next tensor would take it far beyond.
    if (plan.buckets.empty() || room <= 0 || (bytes > 2 * room && plan.buckets.back().entries > 0)) {
      room = plan.buckets.empty() ? options.first_bucket_bytes : options.bucket_bytes;
      plan.buckets.push_back({entries[i].offset + entries[i].numel, 0, 0});
    }
    Bucket& bucket = plan.buckets.back();
    bucket.first = entries[i].offset;
    bucket.numel += entries[i].numel;
    ++bucket.entries;
    plan.bucket_of[i] = static_cast<int>(plan.buckets.size()) - 1;
    room -= bytes;
  }
  return plan;
}

struct DataParallel::Hooks {
  FlatParameters* flat;
  Communicator* communicator;
  BucketPlan plan;
  std::vector<c10::intrusive_ptr<torch::autograd::Node>> accumulators;  // keeps the hooked nodes alive
  bool alive = true;
  bool synchronizing = false;
  std::vector<bool> arrived;     // by entry
  std::vector<int> outstanding;  // by bucket
  std::size_t next_bucket = 0;
  std::vector<WorkPtr> works;
  std::optional<Error> error;

  void begin() {
    synchronizing = true;
    arrived.assign(plan.bucket_of.size(), false);
    outstanding.clear();
    for (const Bucket& bucket : plan.buckets) outstanding.push_back(bucket.entries);
    next_bucket = 0;
  }

  void gradient_ready(std::size_t entry) {
    flat->collect_gradient(flat->entries()[entry]);
    if (!synchronizing || arrived[entry]) return;
    arrived[entry] = true;
    --outstanding[plan.bucket_of[entry]];
    start_full_buckets();
  }

  void start_full_buckets() {
    for (; next_bucket < plan.buckets.size() && outstanding[next_bucket] == 0; ++next_bucket) {
      if (communicator->size() == 1 || error) continue;
      const Bucket& bucket = plan.buckets[next_bucket];
      auto work = communicator->all_reduce(fmt::format("gradients, bucket {}", next_bucket),
                                           flat->gradients().narrow(0, bucket.first, bucket.numel));
      if (work)
        works.push_back(*std::move(work));
      else
        error = work.error();
    }
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

DataParallel::DataParallel(FlatParameters& flat, Communicator& communicator, const BucketOptions& options)
    : hooks_(std::make_shared<Hooks>()) {
  hooks_->flat = &flat;
  hooks_->communicator = &communicator;
  hooks_->plan = plan_buckets(flat.entries(), static_cast<std::int64_t>(flat.gradients().element_size()), options);
  for (std::size_t i = 0; i < flat.entries().size(); ++i) {
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

Result<void> DataParallel::broadcast_parameters() {
  YOKE_TRY(WorkPtr work, hooks_->communicator->broadcast("parameters", hooks_->flat->values()));
  return work->wait();
}

void DataParallel::synchronize_next_backward() { hooks_->begin(); }

Result<Seconds> DataParallel::finish() {
  YOKE_CHECK(hooks_->synchronizing, "finish() without synchronize_next_backward()");
  for (std::size_t i = 0; i < hooks_->arrived.size(); ++i)
    if (!hooks_->arrived[i]) hooks_->gradient_ready(i);
  hooks_->synchronizing = false;
  auto began = std::chrono::steady_clock::now();
  std::vector<WorkPtr> works = std::move(hooks_->works);
  hooks_->works.clear();
  if (hooks_->error) return tl::unexpected(*std::exchange(hooks_->error, std::nullopt));
  for (WorkPtr& work : works) YOKE_TRY_VOID(work->wait());
  return Seconds(std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count());
}

const BucketPlan& DataParallel::plan() const { return hooks_->plan; }

}  // namespace yoke
