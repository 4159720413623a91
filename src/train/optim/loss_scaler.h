// Dynamic loss scaling for fp16 (Micikevicius et al. 2018): the loss is multiplied by a scale that keeps small
// gradients above fp16's smallest numbers, and the gradients are divided by it before the update.
//
// A value without tensors; who uses it finds out whether gradients overflowed, the same on every rank.
#pragma once

#include <cstdint>

#include "core/base/result.h"
#include "core/spec/run_spec.h"

namespace yoke {

class LossScaler {
 public:
  // What a checkpoint keeps.
  struct State {
    double scale;
    std::int64_t good_steps;  // in a row, since the scale last changed
    bool operator==(const State&) const = default;
  };

  // The scale never leaves these.
  static constexpr double least = 1, most = 16777216;  // 2^24

  explicit LossScaler(const LossScaleSpec& spec);

  double scale() const { return state_.scale; }

  // After each backward pass. With overflow (a gradient is infinite or not a number) the scale halves and the step is
  // to be skipped: false. After growth_interval steps in a row without, it doubles.
  bool update(bool overflow);

  State state() const { return state_; }
  // Fails for a state that no scaler can have; the scaler then stays as it is.
  Result<void> restore(State state);

 private:
  std::int64_t growth_interval_;
  State state_;
};

}  // namespace yoke
