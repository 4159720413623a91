#include "train/loop/data_parallel_module.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <functional>
#include <optional>

#include "train/parallel/data_parallel.h"
#include "train/parallel/flat_parameters.h"

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
  FlatParameters flat;
  std::optional<DataParallel> parallel = std::nullopt;
};

DataParallelModule::DataParallelModule(std::unique_ptr<Parts> parts) : parts_(std::move(parts)) {}
DataParallelModule::~DataParallelModule() = default;

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
  YOKE_TRY(FlatParameters flat, FlatParameters::make(parameters));
  std::unique_ptr<Parts> parts(new Parts{job, module, options, std::move(flat)});
  BucketOptions buckets;
  buckets.bucket_bytes = options.bucket_bytes;
  buckets.first_bucket_bytes = std::min(buckets.first_bucket_bytes, options.bucket_bytes);
  parts->parallel.emplace(parts->flat, job.communicator(), buckets);
  std::unique_ptr<DataParallelModule> wrapped(new DataParallelModule(std::move(parts)));
  YOKE_TRY_VOID(wrapped->broadcast());
  return wrapped;
}

Result<void> DataParallelModule::backward(const at::Tensor& loss) {
  parts_->parallel->synchronize_next_backward();
  try {
    loss.backward();
  } catch (const std::exception& e) {
    std::string text = e.what();
    return fail(ErrorKind::failed,
                fmt::format("backward on rank {}: {}", parts_->job.rank(), text.substr(0, text.find('\n'))));
  }
  YOKE_TRY_VOID(parts_->parallel->finish());
  if (parts_->options.gradients == DataParallelOptions::Gradients::average)
    parts_->flat.gradients().div_(parts_->job.size());
  return {};
}

Result<void> DataParallelModule::broadcast() {
  if (parts_->job.size() == 1) return {};
  Communicator& communicator = parts_->job.communicator();
  at::NoGradGuard no_grad;
  for (const FlatEntry& entry : parts_->flat.entries()) {
    at::Tensor place = FlatParameters::view(parts_->flat.values(), entry);
    if (place.const_data_ptr() == entry.parameter.const_data_ptr()) continue;
    place.copy_(entry.parameter);  // torch::load gives parameters a storage of their own
    entry.parameter.set_data(place);
  }
  YOKE_TRY_VOID(parts_->parallel->broadcast_parameters());
  for (const auto& [name, parameter] : named(parts_->module.named_parameters()))
    if (!parameter.requires_grad()) YOKE_TRY_VOID(broadcast_tensor(communicator, name, parameter));
  for (const auto& [name, buffer] : named(parts_->module.named_buffers()))
    YOKE_TRY_VOID(broadcast_tensor(communicator, name, buffer));
  return {};
}

}  // namespace yoke
