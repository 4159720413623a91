#include "train/loop/trainer.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <chrono>
#include <cmath>

#include "core/parallel/model_parameters.h"
#include "train/comm/memory.h"
#include "train/nn/weight_access.h"

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
    TransformerOptions options{type, device, spec.train.recompute, TransformerOptions::ParameterMemory::none};
    if (spec.offload.activations != Offload::none)
      options.kept_inputs = trainer->kept_inputs_ =
          std::make_shared<KeptInputs>(spec.offload.activations, spec.offload.path, spec.model.shape.layers);
    trainer->model_ = make_transformer(spec.model.shape, options);
  }
  std::vector<ParameterSize> sizes = model_parameters(spec.model.shape);
  YOKE_TRY_VOID(freeze(sizes, spec.train.freeze));
  const NamedParameters& parameters = trainer->model_->ordered_parameters();
  for (std::size_t i = 0; i < sizes.size(); ++i)
    if (!sizes[i].trainable) at::Tensor(parameters[i].second).set_requires_grad(false);
  if (type == at::kHalf) trainer->scaler_.emplace(spec.train.loss_scale);
  const ParallelSpec& parallel = spec.parallel;
  int zero = static_cast<int>(parallel.zero);
  YOKE_TRY(trainer->axis_, DataAxis::make(communicator, zero, parallel.shard_group));
  FlatOptions options{.zero = zero,
                      .bucket_bytes = spec.train.bucket_mib * (1 << 20),
                      .first_bucket_bytes = spec.train.first_bucket_mib * (1 << 20),
                      .least_unit_bytes = spec.train.first_bucket_mib * (1 << 20),
                      .values = spec.offload.parameters,
                      .folder = spec.offload.path};
  YOKE_TRY(trainer->flat_,
           FlatParameters::make(trainer->model_->ordered_parameters(), trainer->axis_->groups(), options));
  trainer->parallel_ = std::make_unique<DataParallel>(*trainer->flat_);
  if (zero == 3) {
    trainer->gather_ = std::make_unique<GatherOnUse>(*trainer->flat_);
    weight_listener = &GatherOnUse::before_use;
  }
  YOKE_TRY(trainer->optimizer_,
           AdamW::make(*trainer->flat_, spec.train.optimizer, spec.offload.optimizer, spec.offload.path));
  return trainer;
}

Trainer::~Trainer() = default;

Result<void> Trainer::set_parameter(const std::string& name, const at::Tensor& values) {
  for (const FlatEntry& entry : flat_->entries()) {
    if (entry.name != name) continue;
    if (!values.sizes().equals(entry.parameter.sizes()))
      return fail(ErrorKind::failed,
                  fmt::format("{} has the shape {}, but the model's is {}", name, c10::str(values.sizes()),
                              c10::str(entry.parameter.sizes())),
                  "do the weights belong to this config.json?");
    at::NoGradGuard no_grad;
    ShardPart part = part_in_shard(flat_->map(), entry.place, axis_->groups().shard->rank());
    if (part.numel == 0) return {};
    YOKE_TRY(at::Tensor shard, optimizer_->read(AdamW::Part::weights, entry.place.unit));
    shard.narrow(0, part.at, part.numel).copy_(values.reshape({-1}).narrow(0, part.first, part.numel));
    return optimizer_->write(AdamW::Part::weights, entry.place.unit, shard);
  }
  return fail(ErrorKind::failed, fmt::format("the model has no parameter {}", name));
}

Result<void> Trainer::publish_parameters() {
  YOKE_TRY_VOID(optimizer_->publish());
  return flat_->gather_values(/*frozen_too=*/true);
}

Result<StepResult> Trainer::step(std::int64_t step, const Batch& batch, bool stop) {
  const TrainSpec& train = spec_.train;
  StepResult result;
  std::int64_t micro = std::min(train.micro_batch, batch.rows);
  YOKE_CHECK(micro > 0 && batch.rows % micro == 0, "{} rows in micro-batches of {}", batch.rows, micro);
  auto expected = static_cast<double>(train.global_batch * batch.sequence);

  double scale = result.loss_scale = scaler_ ? scaler_->scale() : 1;

  Stopwatch watch;
  flat_->zero_gradients();
  result.optimizer_seconds += watch.lap();
  // Every rank's loss, counted tokens and wish to stop, summed.
  at::Tensor sums = at::zeros({3}, at::kDouble);
  auto* sum = sums.mutable_data_ptr<double>();
  sum[1] = static_cast<double>(batch.valid);
  sum[2] = stop ? 1 : 0;
  at::Tensor reduced_sums;
  WorkPtr sums_work;
  // Waiting for parameters is exposed communication, and no part of the pass in which it happens.
  auto waited = [this] { return gather_ != nullptr ? gather_->waited().value : 0; };
  for (std::int64_t first = 0; first < batch.rows; first += micro) {
    bool last = first + micro == batch.rows;
    at::Tensor inputs = rows_of(batch.inputs, batch, first, micro, device_),
               targets = rows_of(batch.targets, batch, first, micro, device_);
    if (gather_ != nullptr) gather_->begin("train");
    at::Tensor loss = model_->loss(inputs, targets, scale / expected);
    sum[0] += loss.item<double>() / scale;
    double waited_in_forward = waited();
    result.forward_seconds += watch.lap() - waited_in_forward;
    if (last) {
      reduced_sums = sums.to(device_);
      YOKE_TRY(sums_work, communicator_.all_reduce("loss and tokens", reduced_sums));
    }
    parallel_->begin_backward(last);
    loss.backward();
    result.backward_seconds += watch.lap() - (waited() - waited_in_forward);
    YOKE_TRY(Seconds exposed, parallel_->finish_backward());
    result.exposed_seconds += exposed.value;
    if (kept_inputs_ != nullptr) YOKE_TRY_VOID(kept_inputs_->check());
    if (gather_ != nullptr) {
      YOKE_TRY(Seconds in_all, gather_->end());
      result.exposed_seconds += in_all.value;
    }
    watch.lap();
  }
  YOKE_TRY_VOID(sums_work->wait());
  result.exposed_seconds += watch.lap();

  sums = reduced_sums.cpu();
  sum = sums.mutable_data_ptr<double>();
  result.tokens = static_cast<std::int64_t>(sum[1]);
  result.stop = sum[2] > 0;
  double to_mean = sum[1] > 0 ? expected / sum[1] : 0;  // exactly 1 when every token counts
  result.loss = sum[0] * to_mean;
  YOKE_TRY(double squares, sum_over_shards(sum_of_squared_gradients(*flat_)));
  to_mean /= scale;
  result.grad_norm = std::sqrt(squares) * to_mean;
  if (keep_gradients_) YOKE_TRY_VOID(keep_gradients_of_step(to_mean));
  result.learning_rate = learning_rate(train.optimizer, train.schedule, train.steps, step);
  // All ranks see the same norm, so all come to the same decision.
  if (scaler_) result.skipped = !scaler_->update(!std::isfinite(result.grad_norm));
  if (result.skipped) return result;
  YOKE_TRY_VOID(optimizer_->step(result.learning_rate, to_mean * clip_factor(result.grad_norm, train.optimizer.clip)));
  result.optimizer_seconds += watch.lap();
  YOKE_TRY_VOID(flat_->gather_values());
  result.exposed_seconds += watch.lap();
  return result;
}

// Each copy's shards are the same, so the sum over one shard group is that over all parameters.
Result<double> Trainer::sum_over_shards(double mine) {
  Communicator& group = *axis_->groups().shard;
  if (group.size() == 1) return mine;
  at::Tensor sum = at::full({1}, mine, at::TensorOptions().dtype(at::kDouble).device(device_));
  YOKE_TRY(WorkPtr work, group.all_reduce("gradient norm", sum));
  YOKE_TRY_VOID(work->wait());
  return sum.item<double>();
}

Result<void> Trainer::keep_gradients_of_step(double scale) {
  for (int u = 0; u < flat_->unit_count(); ++u) {
    if (!flat_->gradient_shard(u).defined()) continue;
    YOKE_TRY(auto gradients, flat_->gather("kept gradients", u, flat_->gradient_shard(u)));
    for (const auto& [name, values] : gradients) kept_gradients_[name] = values * scale;
  }
  return {};
}

Result<std::map<std::string, at::Tensor>> Trainer::whole_weights() {
  std::map<std::string, at::Tensor> weights;
  for (int u = 0; u < flat_->unit_count(); ++u) {
    YOKE_TRY(at::Tensor shard, optimizer_->read(AdamW::Part::weights, u));
    YOKE_TRY(auto tensors, flat_->gather("weights", u, shard));
    for (const auto& [name, values] : tensors) weights[name] = values.clone();
  }
  return weights;
}

Result<std::pair<double, std::int64_t>> Trainer::validate(const std::vector<Batch>& batches) {
  at::NoGradGuard no_grad;
  at::Tensor sums = at::zeros({2}, at::kDouble);
  auto* sum = sums.mutable_data_ptr<double>();
  // With sharded parameters every rank must take part in every forward pass: a rank with fewer batches runs an empty
  // one.
  std::int64_t passes = static_cast<std::int64_t>(batches.size());
  if (gather_ != nullptr) {
    at::Tensor most = at::full({1}, passes, at::TensorOptions().dtype(at::kLong).device(device_));
    YOKE_TRY(WorkPtr work, communicator_.all_reduce("validation batches", most, ReduceOp::max));
    YOKE_TRY_VOID(work->wait());
    passes = most.item<std::int64_t>();
  }
  auto length = static_cast<std::size_t>(spec_.data.sequence);
  Batch empty{1, spec_.data.sequence, std::vector<std::int64_t>(length),
              std::vector<std::int64_t>(length, ignored_target), 0};
  for (std::size_t i = 0; i < static_cast<std::size_t>(passes); ++i) {
    const Batch& batch = i < batches.size() ? batches[i] : empty;
    at::Tensor inputs = rows_of(batch.inputs, batch, 0, batch.rows, device_),
               targets = rows_of(batch.targets, batch, 0, batch.rows, device_);
    if (gather_ != nullptr) gather_->begin("validate");
    sum[0] += model_->loss(inputs, targets, 1).item<double>();
    sum[1] += static_cast<double>(batch.valid);
    if (gather_ != nullptr) YOKE_TRY_VOID(gather_->end());
  }
  at::Tensor reduced = sums.to(device_);
  YOKE_TRY(WorkPtr work, communicator_.all_reduce("validation loss", reduced));
  YOKE_TRY_VOID(work->wait());
  sums = reduced.cpu();
  sum = sums.mutable_data_ptr<double>();
  return std::pair(sum[1] > 0 ? sum[0] / sum[1] : 0.0, static_cast<std::int64_t>(sum[1]));
}

}  // namespace yoke
