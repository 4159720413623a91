// Where weights are not always in memory (ZeRO 3), somebody must be told before their values are read. Functions here
// tell it; nobody listens otherwise.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>

namespace yoke {

inline std::atomic<void (*)(const at::Tensor&)> weight_listener{nullptr};

// Before the values of a weight are read, in forward and backward.
inline void use_weight(const at::Tensor& weight) {
  if (auto* listener = weight_listener.load(std::memory_order_relaxed)) listener(weight);
}

}  // namespace yoke
