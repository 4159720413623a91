// AdamW (Loshchilov and Hutter 2019) on flat buffers, through libtorch's fused operation.
//
// The moments, and for 16-bit parameters the fp32 master weights, lie in flat tensors with the parameters' offsets.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "core/spec/run_spec.h"
#include "train/parallel/flat_parameters.h"

namespace yoke {

class AdamW {
 public:
  // Weight decay covers all parameters, or those with at least two dimensions (Decay::matrices). flat must outlive it.
  AdamW(FlatParameters& flat, const OptimizerSpec& spec);

  // One update from flat.gradients() times gradient_scale. The gradients are used up: their values are undefined
  // afterwards.
  void step(double learning_rate, double gradient_scale);

  // What the update works on: the parameters themselves, or the fp32 master weights. After writing to it: publish().
  const at::Tensor& weights() const { return weights_; }
  const at::Tensor& exp_avg() const { return exp_avg_; }
  const at::Tensor& exp_avg_sq() const { return exp_avg_sq_; }
  std::int64_t steps() const;
  void set_steps(std::int64_t steps);
  // Copies the master weights into the 16-bit parameters.
  void publish();

 private:
  struct Segment {  // of entries with the same decay, one after the other
    std::vector<at::Tensor> weights, gradients, exp_avg, exp_avg_sq, steps;
  };

  FlatParameters& flat_;
  OptimizerSpec spec_;
  at::Tensor weights_, exp_avg_, exp_avg_sq_, steps_;
  Segment decayed_, plain_;
};

// sqrt of the sum of squares, accumulated in fp64.
double gradient_norm(const at::Tensor& gradients);

// min(1, clip / (norm + 1e-6)); 1 without clipping (clip 0).
double clip_factor(double norm, double clip);

// The rate of step s (from 0) of a run of `steps`: in warm-up lr (s + 1) / warmup, then the decay from lr down to
// min_lr at the last step.
double learning_rate(const OptimizerSpec& optimizer, const LrScheduleSpec& schedule, std::int64_t steps,
                     std::int64_t step);

}  // namespace yoke
