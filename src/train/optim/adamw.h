// AdamW (Loshchilov and Hutter 2019) on this rank's shards, through libtorch's fused operation.
//
// The moments, and for 16-bit parameters the fp32 master weights, lie in flat tensors cut by the parameters' shard map.
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

  // One update from the gradient shards times gradient_scale. The gradients are used up: their values are undefined
  // afterwards. The caller then gathers the values (FlatParameters::gather_values).
  void step(double learning_rate, double gradient_scale);

  // This rank's shard of a unit: what the update works on (the parameters themselves, or the fp32 master weights; after
  // writing to it: publish()), and the moments, which frozen units do not have.
  at::Tensor weights(int unit) const {
    return flat_.wide() || !flat_.gradient_shard(unit).defined() ? flat_.value_shard(unit) : shard(weights_, unit);
  }
  at::Tensor exp_avg(int unit) const { return shard(exp_avg_, unit); }
  at::Tensor exp_avg_sq(int unit) const { return shard(exp_avg_sq_, unit); }
  std::int64_t steps() const;
  void set_steps(std::int64_t steps);
  // Copies the master weights into this rank's shards of the 16-bit parameters.
  void publish();

 private:
  struct Segment {  // runs of elements with the same decay
    std::vector<at::Tensor> weights, gradients, exp_avg, exp_avg_sq, steps;
  };

  at::Tensor shard(const at::Tensor& all, int unit) const;

  FlatParameters& flat_;
  OptimizerSpec spec_;
  std::vector<std::int64_t> first_;  // of each unit's shard in the flat tensors
  at::Tensor weights_, exp_avg_, exp_avg_sq_, steps_;
  Segment decayed_, plain_;
};

// Sum of the squares of all gradient shards of this rank, accumulated in fp64.
double sum_of_squared_gradients(const FlatParameters& flat);

// min(1, clip / (norm + 1e-6)); 1 without clipping (clip 0).
double clip_factor(double norm, double clip);

// The rate of step s (from 0) of a run of `steps`: in warm-up lr (s + 1) / warmup, then the decay from lr down to
// min_lr at the last step.
double learning_rate(const OptimizerSpec& optimizer, const LrScheduleSpec& schedule, std::int64_t steps,
                     std::int64_t step);

}  // namespace yoke
