#include "train/loop/trainer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <chrono>

#include "train/comm/memory.h"

namespace yoke {
namespace {

class Stopwatch {
 public:
  // Seconds since the last call, or since it was made.
  double lap() {
    auto now = std::chrono::steady_clock::now();
    double seconds = std::chrono::duration<double>(now - last_).count();
    last_ = now;
    return seconds;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// Rows [first, first + rows) of a batch, without a copy on the CPU.
at::Tensor rows_of(const std::vector<std::int64_t>& values, const Batch& batch, std::int64_t first, std::int64_t rows,
                   at::Device device) {
  auto* data = const_cast<std::int64_t*>(values.data()) + first * batch.sequence;
  return at::from_blob(data, {rows, batch.sequence}, at::kLong).to(device);
}

}  // namespace

at::ScalarType parameter_type(Precision precision) {
  switch (precision) {
    case Precision::fp32:
      return at::kFloat;
    case Precision::bf16:
      return at::kBFloat16;
    case Precision::fp16:
      return at::kHalf;
  }
  return at::kFloat;
}

Result<std::unique_ptr<Trainer>> Trainer::make(const RunSpec& spec, Communicator& communicator, at::Device device,
                                               at::ScalarType type) {
  std::unique_ptr<Trainer> trainer(new Trainer(spec, communicator, device));
  {
    // The parameters move into the flat buffer below; these are the first allocations that count as such.
    MemoryScope scope(MemoryPart::parameters);
    trainer->model_ = make_transformer(spec.model.shape, type, device, spec.train.recompute);
  }
  YOKE_TRY(trainer->flat_, FlatParameters::make(trainer->model_->ordered_parameters()));
  trainer->parallel_ = std::make_unique<DataParallel>(
      trainer->flat_, communicator,
      BucketOptions{spec.train.bucket_mib * (1 << 20), spec.train.first_bucket_mib * (1 << 20)});
  trainer->optimizer_ = std::make_unique<AdamW>(trainer->flat_, spec.train.optimizer);
  return trainer;
}

Result<void> Trainer::set_parameter(const std::string& name, const at::Tensor& values) {
  for (const FlatEntry& entry : flat_.entries()) {
    if (entry.name != name) continue;
    if (!values.sizes().equals(entry.parameter.sizes()))
      return fail(ErrorKind::failed,
                  fmt::format("{} has the shape {}, but the model's is {}", name, c10::str(values.sizes()),
                              c10::str(entry.parameter.sizes())),
                  "do the weights belong to this config.json?");
    at::NoGradGuard no_grad;
    FlatParameters::view(optimizer_->weights(), entry).copy_(values);
    FlatParameters::view(flat_.values(), entry).copy_(values);
    return {};
  }
  return fail(ErrorKind::failed, fmt::format("the model has no parameter {}", name));
}

Result<void> Trainer::broadcast_parameters() {
  YOKE_TRY(WorkPtr work, communicator_.broadcast("weights", optimizer_->weights()));
  YOKE_TRY_VOID(work->wait());
  optimizer_->publish();
  return {};
}

Result<StepResult> Trainer::step(std::int64_t step, const Batch& batch, bool stop) {
  const TrainSpec& train = spec_.train;
  StepResult result;
  std::int64_t micro = std::min(train.micro_batch, batch.rows);
  YOKE_CHECK(micro > 0 && batch.rows % micro == 0, "{} rows in micro-batches of {}", batch.rows, micro);
  auto expected = static_cast<double>(train.global_batch * batch.sequence);

  Stopwatch watch;
  flat_.zero_gradients();
  result.optimizer_seconds += watch.lap();
  // Every rank's loss, counted tokens and wish to stop, summed.
  at::Tensor sums = at::zeros({3}, at::kDouble);
  auto* sum = sums.mutable_data_ptr<double>();
  sum[1] = static_cast<double>(batch.valid);
  sum[2] = stop ? 1 : 0;
  at::Tensor reduced_sums;
  WorkPtr sums_work;
  for (std::int64_t first = 0; first < batch.rows; first += micro) {
    at::Tensor inputs = rows_of(batch.inputs, batch, first, micro, device_),
               targets = rows_of(batch.targets, batch, first, micro, device_);
    at::Tensor loss = model_->loss(inputs, targets, 1 / expected);
    sum[0] += loss.item<double>();
    result.forward_seconds += watch.lap();
    if (first + micro == batch.rows) {
      reduced_sums = sums.to(device_);
      YOKE_TRY(sums_work, communicator_.all_reduce("loss and tokens", reduced_sums));
      parallel_->synchronize_next_backward();
    }
    loss.backward();
    result.backward_seconds += watch.lap();
  }
  YOKE_TRY(Seconds exposed, parallel_->finish());
  result.exposed_seconds = exposed.value;
  watch.lap();
  YOKE_TRY_VOID(sums_work->wait());
  result.exposed_seconds += watch.lap();

  sums = reduced_sums.cpu();
  sum = sums.mutable_data_ptr<double>();
  result.tokens = static_cast<std::int64_t>(sum[1]);
  result.stop = sum[2] > 0;
  double to_mean = sum[1] > 0 ? expected / sum[1] : 0;  // exactly 1 when every token counts
  result.loss = sum[0] * to_mean;
  result.grad_norm = gradient_norm(flat_.gradients()) * to_mean;
  if (keep_gradients_) kept_gradients_ = flat_.gradients() * to_mean;
  result.learning_rate = learning_rate(train.optimizer, train.schedule, train.steps, step);
  optimizer_->step(result.learning_rate, to_mean * clip_factor(result.grad_norm, train.optimizer.clip));
  result.optimizer_seconds += watch.lap();
  return result;
}

Result<std::pair<double, std::int64_t>> Trainer::validate(const std::vector<Batch>& batches) {
  at::NoGradGuard no_grad;
  at::Tensor sums = at::zeros({2}, at::kDouble);
  auto* sum = sums.mutable_data_ptr<double>();
  for (const Batch& batch : batches) {
    at::Tensor inputs = rows_of(batch.inputs, batch, 0, batch.rows, device_),
               targets = rows_of(batch.targets, batch, 0, batch.rows, device_);
    sum[0] += model_->loss(inputs, targets, 1).item<double>();
    sum[1] += static_cast<double>(batch.valid);
  }
  at::Tensor reduced = sums.to(device_);
  YOKE_TRY(WorkPtr work, communicator_.all_reduce("validation loss", reduced));
  YOKE_TRY_VOID(work->wait());
  sums = reduced.cpu();
  sum = sums.mutable_data_ptr<double>();
  return std::pair(sum[1] > 0 ? sum[0] / sum[1] : 0.0, static_cast<std::int64_t>(sum[1]));
}

}  // namespace yoke
