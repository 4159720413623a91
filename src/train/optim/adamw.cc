#include "train/optim/adamw.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <cmath>
#include <numbers>

#include "train/comm/memory.h"

namespace yoke {

AdamW::AdamW(FlatParameters& flat, const OptimizerSpec& spec) : flat_(flat), spec_(spec) {
  at::NoGradGuard no_grad;
  MemoryScope scope(MemoryPart::optimizer);
  const ShardMap& map = flat.map();
  std::int64_t total = 0;
  for (int u = 0; u < flat.unit_count(); ++u) {
    first_.push_back(total);
    total += map.units[static_cast<std::size_t>(u)].trainable ? map.shard(u) : 0;
  }
  at::TensorOptions options = flat.gradient_options();
  if (!flat.wide()) weights_ = at::zeros({total}, options);
  exp_avg_ = at::zeros({total}, options);
  exp_avg_sq_ = at::zeros({total}, options);
  steps_ = at::zeros({}, options.dtype(at::kFloat));
  for (int u = 0; u < flat.unit_count(); ++u)
    if (!flat.wide() && flat.gradient_shard(u).defined()) shard(weights_, u).copy_(flat.value_shard(u));

  // Runs of entries with the same decay, one after the other in the same shard.
  auto decays = [&](const FlatEntry& e) { return spec.decay == Decay::all || e.parameter.dim() >= 2; };
  int rank = flat.groups().shard->rank();
  struct Run {
    int unit = -1;
    bool decay = false;
    std::int64_t first = 0, numel = 0;
  } run;
  auto close = [&] {
    if (run.numel == 0) return;
    Segment& segment = run.decay ? decayed_ : plain_;
    segment.weights.push_back(weights(run.unit).narrow(0, run.first, run.numel));
    segment.gradients.push_back(flat.gradient_shard(run.unit).narrow(0, run.first, run.numel));
    segment.exp_avg.push_back(exp_avg(run.unit).narrow(0, run.first, run.numel));
    segment.exp_avg_sq.push_back(exp_avg_sq(run.unit).narrow(0, run.first, run.numel));
    segment.steps.push_back(steps_);
  };
  for (const FlatEntry& entry : flat.entries()) {
    ShardPart part = part_in_shard(map, entry.place, rank);
    if (part.numel == 0 || !entry.parameter.requires_grad()) continue;
    bool decay = decays(entry);
    if (run.unit == entry.place.unit && run.decay == decay && run.first + run.numel == part.at) {
      run.numel += part.numel;
      continue;
    }
    close();
    run = {entry.place.unit, decay, part.at, part.numel};
  }
  close();
}

at::Tensor AdamW::shard(const at::Tensor& all, int unit) const {
  return all.narrow(0, first_[static_cast<std::size_t>(unit)], flat_.map().shard(unit));
}

void AdamW::step(double learning_rate, double gradient_scale) {
  at::NoGradGuard no_grad;
  steps_.add_(1);
  std::optional<at::Tensor> divisor;  // the fused operation divides the gradients by it
  if (gradient_scale != 1) divisor = at::full({}, 1 / gradient_scale, steps_.options());
  auto update = [&](Segment& s, double weight_decay) {
    if (s.weights.empty()) return;
    at::_fused_adamw_(s.weights, s.gradients, s.exp_avg, s.exp_avg_sq, {}, s.steps, learning_rate, spec_.beta1,
                      spec_.beta2, weight_decay, spec_.eps,
                      /*amsgrad=*/false, /*maximize=*/false, divisor);
  };
  update(decayed_, spec_.weight_decay);
  update(plain_, 0);
  publish();
}

void AdamW::publish() {
  if (flat_.wide()) return;
  at::NoGradGuard no_grad;
  for (int u = 0; u < flat_.unit_count(); ++u)
    if (flat_.gradient_shard(u).defined()) flat_.value_shard(u).copy_(shard(weights_, u));
}

std::int64_t AdamW::steps() const { return static_cast<std::int64_t>(steps_.item<float>()); }

void AdamW::set_steps(std::int64_t steps) { steps_.fill_(static_cast<double>(steps)); }

namespace {

template <class T>
double sum_of_squares(const T* x, std::int64_t n) {
  constexpr std::int64_t block = 1024, lanes = 16;
  double total = 0;
  for (std::int64_t first = 0; first < n; first += block) {
    T sums[lanes] = {};  // independent sums, which the compiler keeps in vectors
    std::int64_t last = std::min(n, first + block), i = first;
    for (; i + lanes <= last; i += lanes)
      for (std::int64_t j = 0; j < lanes; ++j) sums[j] += x[i + j] * x[i + j];
    for (; i < last; ++i) sums[0] += x[i] * x[i];
    for (T sum : sums) total += static_cast<double>(sum);
  }
  return total;
}

}  // namespace

double sum_of_squared_gradients(const FlatParameters& flat) {
  double total = 0;
  for (int u = 0; u < flat.unit_count(); ++u) {
    const at::Tensor& g = flat.gradient_shard(u);
    if (!g.defined()) continue;
    if (!g.is_cpu())
      total += at::linalg_vector_norm(g, 2, std::nullopt, false, at::kDouble).square().item<double>();
    else if (g.scalar_type() == at::kDouble)
      total += sum_of_squares(g.const_data_ptr<double>(), g.numel());
    else
      total += sum_of_squares(g.const_data_ptr<float>(), g.numel());
  }
  return total;
}

double clip_factor(double norm, double clip) { return clip > 0 ? std::min(1.0, clip / (norm + 1e-6)) : 1.0; }

double learning_rate(const OptimizerSpec& optimizer, const LrScheduleSpec& schedule, std::int64_t steps,
                     std::int64_t step) {
  if (step < schedule.warmup)
    return optimizer.lr * static_cast<double>(step + 1) / static_cast<double>(schedule.warmup);
  if (schedule.decay == LrDecay::none) return optimizer.lr;
  double length = static_cast<double>(std::max<std::int64_t>(1, steps - 1 - schedule.warmup));
  double progress = std::min(1.0, static_cast<double>(step - schedule.warmup) / length);
  double share = schedule.decay == LrDecay::linear ? 1 - progress : (1 + std::cos(std::numbers::pi * progress)) / 2;
  return schedule.min_lr + (optimizer.lr - schedule.min_lr) * share;
}

}  // namespace yoke
