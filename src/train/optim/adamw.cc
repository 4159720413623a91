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
  weights_ = flat.wide() ? flat.values() : flat.values().to(at::kFloat);
  exp_avg_ = at::zeros_like(weights_);
  exp_avg_sq_ = at::zeros_like(weights_);
  steps_ = at::zeros({}, weights_.options().dtype(at::kFloat));
  const std::vector<FlatEntry>& entries = flat.entries();
  for (std::size_t i = 0; i < entries.size();) {
    auto decays = [&](const FlatEntry& e) { return spec.decay == Decay::all || e.parameter.dim() >= 2; };
    bool decay = decays(entries[i]);
    std::int64_t first = entries[i].offset, numel = 0;
    for (; i < entries.size() && decays(entries[i]) == decay; ++i) numel += entries[i].numel;
    Segment& segment = decay ? decayed_ : plain_;
    segment.weights.push_back(weights_.narrow(0, first, numel));
    segment.gradients.push_back(flat.gradients().narrow(0, first, numel));
    segment.exp_avg.push_back(exp_avg_.narrow(0, first, numel));
    segment.exp_avg_sq.push_back(exp_avg_sq_.narrow(0, first, numel));
    segment.steps.push_back(steps_);
  }
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
  flat_.values().copy_(weights_);
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

double gradient_norm(const at::Tensor& gradients) {
  if (!gradients.is_cpu()) return at::linalg_vector_norm(gradients, 2, std::nullopt, false, at::kDouble).item<double>();
  if (gradients.scalar_type() == at::kDouble)
    return std::sqrt(sum_of_squares(gradients.const_data_ptr<double>(), gradients.numel()));
  return std::sqrt(sum_of_squares(gradients.const_data_ptr<float>(), gradients.numel()));
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
