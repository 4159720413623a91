#include "train/optim/loss_scaler.h"

#include <fmt/format.h>

#include <algorithm>

namespace yoke {

LossScaler::LossScaler(const LossScaleSpec& spec)
    : growth_interval_(spec.growth_interval), state_{std::clamp(spec.initial, least, most), 0} {}

bool LossScaler::update(bool overflow) {
  if (overflow) {
    state_ = {std::max(least, state_.scale / 2), 0};
    return false;
  }
  if (++state_.good_steps >= growth_interval_) state_ = {std::min(most, state_.scale * 2), 0};
  return true;
}

Result<void> LossScaler::restore(State state) {
  if (!(state.scale >= least && state.scale <= most) || state.good_steps < 0)
    return fail(
        ErrorKind::failed,
        fmt::format("loss scale {} after {} good steps is no state of the loss scaler", state.scale, state.good_steps),
        "the checkpoint is damaged: go on from an older one");
  state_ = state;
  return {};
}

}  // namespace yoke
