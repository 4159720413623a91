#include "train/loop/data_parallel_module.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <optional>

#include "train/optim/adamw.h"
#include "train/optim/loss_scaler.h"
#include "train/parallel/data_axis.h"
#include "train/parallel/data_parallel.h"
#include "train/parallel/flat_parameters.h"
#include "train/parallel/gather_on_use.h"

namespace yoke {
namespace {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

NamedTensors named(const torch::OrderedDict<std::string, at::Tensor>& dictionary) {
  NamedTensors tensors;
  for (const auto& item : dictionary) tensors.emplace_back(item.key(), item.value());
  return tensors;
}

// Names, shapes and types, as a number.
std::int64_t fingerprint(const torch::nn::Module& module) {
  std::string text;
  for (const NamedTensors& tensors : {named(module.named_parameters()), named(module.named_buffers())})
    for (const auto& [name, tensor] : tensors)
      text += fmt::format("{} {} {} {}\n", name, c10::str(tensor.sizes()), c10::toString(tensor.scalar_type()),
                          tensor.requires_grad());
  return static_cast<std::int64_t>(std::hash<std::string>{}(text) >> 2);
}

Result<void> check_same_on_all_ranks(Job& job, const torch::nn::Module& module) {
  std::int64_t mine = fingerprint(module);
  at::Tensor extremes = at::tensor({mine, -mine}, at::kLong);
  YOKE_TRY(WorkPtr work, job.communicator().all_reduce("the module's shape", extremes, ReduceOp::max));
  YOKE_TRY_VOID(work->wait());
  if (extremes[0].item<std::int64_t>() == -extremes[1].item<std::int64_t>()) return {};
  return fail(ErrorKind::usage,
              "the ranks' modules differ in the names, shapes or types of their parameters or buffers",
              "build the same module on every rank");
}

// What libtorch threw, without its stack of frames.
Error thrown(const char* where, const Job& job, const std::exception& e) {
  std::string text = e.what();
  return {ErrorKind::failed, fmt::format("{} on rank {}: {}", where, job.rank(), text.substr(0, text.find('\n')))};
}

// As bytes, so that it works for every type.
Result<void> broadcast_tensor(Communicator& communicator, const std::string& name, at::Tensor tensor) {
  if (tensor.numel() == 0) return {};
  at::NoGradGuard no_grad;
  at::Tensor bytes = tensor.detach().contiguous().reshape({-1}).view(at::kByte);
  YOKE_TRY(WorkPtr work, communicator.broadcast(name, bytes));
  YOKE_TRY_VOID(work->wait());
  tensor.detach().copy_(bytes.view(tensor.scalar_type()).view(tensor.sizes()));
  return {};
}

}  // namespace

struct DataParallelModule::Parts {
  Job& job;
  torch::nn::Module& module;
  DataParallelOptions options;
  std::unique_ptr<DataAxis> axis;
  std::unique_ptr<FlatParameters> flat;
  std::unique_ptr<DataParallel> parallel;
  std::unique_ptr<GatherOnUse> gather;  // stage 3
  at::CallbackHandle watch = 0;
  std::vector<at::Tensor> shards;  // stages 1 to 3: as leaves that an optimizer takes

  std::optional<std::int64_t> joined;  // what this rank said for the coming backward
  std::int64_t counted = 0;            // by join() in this step, on all ranks
  bool some_follow = false;            // stage 3: ranks without examples follow the others through the coming pass
  int leader = 0;                      // the first rank with examples

  std::optional<LossScaler> scaler;
  bool overflow = false;  // of this step's gradients
  std::int64_t skipped = 0;

  // The sum of squares of the whole gradient; the same on every rank.
  Result<double> squares() {
    at::Tensor sum = at::full({1}, sum_of_squared_gradients(*flat), at::kDouble);
    YOKE_TRY(WorkPtr work, axis->groups().shard->all_reduce("gradient norm", sum));
    YOKE_TRY_VOID(work->wait());
    return sum.item<double>();
  }

  bool sharded() const { return options.zero > 0; }

  // What the ranks with examples do next in a pass that others follow: a gather or a reduction of a unit, or the end of
  // what depends on the module. Returns what the leader does.
  static constexpr std::int64_t end_of_graph = -1;
  Result<std::int64_t> next_is(std::int64_t what) {
    at::Tensor said = at::full({1}, what, at::kLong);
    YOKE_TRY(WorkPtr work, job.communicator().broadcast("what ranks without examples follow", said, leader));
    YOKE_TRY_VOID(work->wait());
    return said.item<std::int64_t>();
  }

  Result<void> announce(std::int64_t what) {
    YOKE_TRY(std::int64_t of_leader, next_is(what));
    if (of_leader == what) return {};
    return fail(ErrorKind::usage,
                fmt::format("ranks {} and {} use the module's parameters in different orders", leader, job.rank()),
                "with ZeRO 3 every rank's forward pass takes the same way through the module");
  }

  Result<void> follow() {
    for (;;) {
      YOKE_TRY(std::int64_t what, next_is(end_of_graph));
      if (what == end_of_graph) return {};
      int unit = static_cast<int>(what / 2);
      YOKE_TRY_VOID(what % 2 == 0 ? gather->take_part(unit) : parallel->take_part(unit));
    }
  }

  // What the gradients' sum over the ranks is to be divided by, the loss scale aside.
  double divisor() const {
    if (options.gradients == DataParallelOptions::Gradients::average) return job.size();
    if (options.gradients == DataParallelOptions::Gradients::sum) return 1;
    return static_cast<double>(std::max<std::int64_t>(counted, 1));
  }

  // An optimizer's zero_grad() may have set them to none.
  void give_gradients() {
    std::size_t next = 0;
    for (int u = 0; u < flat->unit_count() && sharded(); ++u)
      if (flat->gradient_shard(u).defined()) shards[next++].mutable_grad() = flat->gradient_shard(u).variable_data();
  }
};

DataParallelModule::DataParallelModule(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
DataParallelModule::~DataParallelModule() {
  if (parts_->gather != nullptr) GatherOnUse::stop_watching(parts_->watch);
}

Result<std::unique_ptr<DataParallelModule>> DataParallelModule::wrap(Job& job, torch::nn::Module& module,
                                                                     const DataParallelOptions& options) {
  YOKE_TRY_VOID(check_same_on_all_ranks(job, module));
  NamedTensors parameters = named(module.named_parameters());
  for (const auto& [name, parameter] : parameters)
    if (parameter.element_size() < 4 || !parameter.device().is_cpu())
      return fail(ErrorKind::usage,
                  fmt::format("parameter {} is {} on {}, and DataParallelModule takes fp32 or fp64 on the CPU", name,
                              c10::toString(parameter.scalar_type()), parameter.device().str()),
                  "keep the parameters in fp32");
  if (options.zero < 0 || options.zero > 3)
    return fail(ErrorKind::usage, fmt::format("there is no ZeRO stage {}", options.zero), "choose 0, 1, 2 or 3");
  if (!(options.loss_scale == 0 || (options.loss_scale >= LossScaler::least && options.loss_scale <= LossScaler::most)))
    return fail(ErrorKind::usage,
                fmt::format("a loss scale of {} is not 0, nor from {} to {}", options.loss_scale, LossScaler::least,
                            LossScaler::most),
                "65536 is a usual first scale");
  // Tensor by tensor, while they are still the module's own.
  for (const auto& [name, parameter] : parameters) YOKE_TRY_VOID(broadcast_tensor(job.communicator(), name, parameter));
  std::unique_ptr<Parts> parts(new Parts{job, module, options});
  YOKE_TRY(parts->axis, DataAxis::make(job.communicator(), options.zero, options.shard_group));
  FlatOptions flat{.zero = options.zero,
                   .bucket_bytes = options.bucket_bytes,
                   .first_bucket_bytes = std::min(FlatOptions().first_bucket_bytes, options.bucket_bytes),
                   .least_unit_bytes = options.least_unit_bytes};
  YOKE_TRY(parts->flat, FlatParameters::make(parameters, parts->axis->groups(), flat));
  parts->parallel = std::make_unique<DataParallel>(*parts->flat);
  if (options.zero > 0)
    for (int u = 0; u < parts->flat->unit_count(); ++u)
      if (parts->flat->gradient_shard(u).defined())
        parts->shards.push_back(parts->flat->value_shard(u).detach().requires_grad_(true));
  parts->give_gradients();
  if (options.loss_scale > 0) parts->scaler.emplace(LossScaleSpec{.initial = options.loss_scale});
  if (options.zero == 3) {
    parts->gather = std::make_unique<GatherOnUse>(*parts->flat);
    parts->watch = GatherOnUse::watch_operations();
    parts->gather->begin("train");
  }
  std::unique_ptr<DataParallelModule> wrapped(new DataParallelModule(std::move(parts)));
  YOKE_TRY_VOID(wrapped->broadcast());
  return wrapped;
}

torch::nn::Module& DataParallelModule::module() const { return parts_->module; }

const FlatParameters& DataParallelModule::flat() const { return *parts_->flat; }

LossScaler* DataParallelModule::loss_scaler() const { return parts_->scaler ? &*parts_->scaler : nullptr; }

Result<void> DataParallelModule::forget_gathered() {
  if (parts_->gather == nullptr) return {};
  YOKE_TRY_VOID(parts_->gather->end());
  parts_->gather->release_all();
  parts_->gather->begin("train");
  return {};
}

std::vector<at::Tensor> DataParallelModule::parameters() const {
  if (parts_->sharded()) return parts_->shards;
  std::vector<at::Tensor> own;
  for (const FlatEntry& entry : parts_->flat->entries())
    if (entry.parameter.requires_grad()) own.push_back(entry.parameter);
  return own;
}

Result<std::int64_t> DataParallelModule::join(std::int64_t examples) {
  Parts& p = *parts_;
  if (p.options.gradients == DataParallelOptions::Gradients::average)
    return fail(ErrorKind::usage,
                "join() is for ranks with different numbers of examples, and the gradients' average is not",
                "choose Gradients::example_mean, with a loss that is the sum over the rank's examples");
  YOKE_TRY(std::vector<std::int64_t> counts, p.job.gather("examples", examples));
  std::int64_t total = std::accumulate(counts.begin(), counts.end(), std::int64_t{0});
  auto without = std::count(counts.begin(), counts.end(), 0);
  p.joined = examples;
  p.counted += total;
  p.some_follow = p.gather != nullptr && total > 0 && without > 0;
  p.leader = static_cast<int>(std::find_if(counts.begin(), counts.end(), [](std::int64_t count) { return count > 0; }) -
                              counts.begin());
  if (p.some_follow) {
    YOKE_TRY_VOID(p.gather->end());  // nothing may be on its way
    p.gather->begin("followed");
    if (examples > 0) {
      p.gather->announce([&p](int unit) { return p.announce(2 * unit); });
      p.parallel->announce([&p](int unit) { return p.announce(2 * unit + 1); });
    }
  }
  return total;
}

Result<void> DataParallelModule::backward(const at::Tensor& loss, bool last) {
  Parts& p = *parts_;
  if (!p.joined && p.options.gradients == DataParallelOptions::Gradients::example_mean)
    return fail(ErrorKind::usage, "Gradients::example_mean needs the number of examples of each backward",
                "call join() ahead of the forward pass");
  if (bool with_examples = p.joined.value_or(1) > 0; with_examples != loss.defined())
    return fail(ErrorKind::usage,
                fmt::format("rank {} calls backward {} a loss, and said that it has {} examples", p.job.rank(),
                            loss.defined() ? "with" : "without", with_examples ? "some" : "no"),
                "call backward({}) after join(0), and only then");
  p.joined.reset();
  p.parallel->begin_backward(last);
  if (loss.defined()) {
    try {
      (p.scaler ? loss * p.scaler->scale() : loss).backward();
    } catch (const std::exception& e) {
      return tl::unexpected(thrown("backward", p.job, e));
    }
  }
  if (std::exchange(p.some_follow, false)) {
    YOKE_TRY_VOID(loss.defined() ? p.announce(Parts::end_of_graph) : p.follow());
    p.gather->announce(nullptr);
    p.parallel->announce(nullptr);
  }
  YOKE_TRY_VOID(p.parallel->finish_backward());
  if (p.gather != nullptr) {
    YOKE_TRY_VOID(p.gather->end());
    p.gather->begin(last ? "before the update" : "train");
  }
  if (!last) return {};
  double divisor = p.divisor() * loss_scale();
  p.counted = 0;
  for (int u = 0; u < p.flat->unit_count() && divisor != 1; ++u)
    if (const at::Tensor& shard = p.flat->gradient_shard(u); shard.defined()) shard.div_(divisor);
  if (p.scaler) {
    YOKE_TRY(double squares, p.squares());
    p.overflow = !std::isfinite(squares);
  }
  p.give_gradients();
  return {};
}

Result<double> DataParallelModule::clip_gradients(double max_norm) {
  at::NoGradGuard no_grad;
  YOKE_TRY(double squares, parts_->squares());
  double norm = std::sqrt(squares), factor = clip_factor(norm, max_norm);
  for (int u = 0; u < parts_->flat->unit_count() && factor != 1; ++u)
    if (const at::Tensor& shard = parts_->flat->gradient_shard(u); shard.defined()) shard.mul_(factor);
  return norm;
}

Result<void> DataParallelModule::step(torch::optim::Optimizer& optimizer) {
  if (parts_->scaler && !parts_->scaler->update(parts_->overflow)) {
    ++parts_->skipped;
    parts_->flat->zero_gradients();
    return {};
  }
  try {
    optimizer.step();
  } catch (const std::exception& e) {
    return tl::unexpected(thrown("the optimizer", parts_->job, e));
  }
  YOKE_TRY_VOID(forget_gathered());  // what has been gathered since backward is old now
  YOKE_TRY_VOID(parts_->flat->gather_values());
  parts_->flat->zero_gradients();
  return {};
}

std::int64_t DataParallelModule::skipped_steps() const { return parts_->skipped; }

double DataParallelModule::loss_scale() const { return parts_->scaler ? parts_->scaler->scale() : 1; }

Result<void> DataParallelModule::gather_parameters() {
  if (parts_->gather == nullptr) return {};
  return parts_->gather->gather_all();
}

void DataParallelModule::release_parameters() {
  if (parts_->gather != nullptr) parts_->gather->release_all();
}

Result<void> DataParallelModule::broadcast() {
  if (parts_->job.size() == 1) return {};
  Communicator& communicator = parts_->job.communicator();
  at::NoGradGuard no_grad;
  for (const FlatEntry& entry : parts_->flat->entries()) {
    if (parts_->sharded()) break;
    at::Tensor place = FlatParameters::view(parts_->flat->values(entry.place.unit), entry);
    if (place.const_data_ptr() != entry.parameter.const_data_ptr()) {
      place.copy_(entry.parameter);  // torch::load gives parameters a storage of their own
      entry.parameter.set_data(place);
    }
    YOKE_TRY_VOID(broadcast_tensor(communicator, entry.name, entry.parameter));
  }
  for (const auto& [name, buffer] : named(parts_->module.named_buffers()))
    YOKE_TRY_VOID(broadcast_tensor(communicator, name, buffer));
  return {};
}

}  // namespace yoke
