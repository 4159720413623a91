// Mixed precision for a module of one's own: while an Autocast lives, libtorch computes matrix products, convolutions
// and the like in 16 bits, and what needs the range in fp32; parameters, gradients and optimizer state stay as they
// are.
//
//   at::Tensor loss;
//   {
//     Autocast autocast(at::kBFloat16);
//     loss = loss_of(batch);
//   }
//   YOKE_TRY_VOID(parallel->backward(loss));
//
// fp16 also wants DataParallelOptions::loss_scale. Of this thread and one type of device; may be nested.
//
// libtorch's cache of converted parameters is off meanwhile: it would outlive the update of the parameters, and with
// ZeRO 3 the time for which they have values at all. A parameter that is used twice is converted twice.
#pragma once

#include <c10/core/DeviceType.h>
#include <c10/core/ScalarType.h>

namespace yoke {

class Autocast {
 public:
  explicit Autocast(at::ScalarType type, at::DeviceType device = at::kCPU);
  ~Autocast();
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  at::DeviceType device_;
  bool enabled_before_, cache_before_;
  at::ScalarType type_before_;
};

}  // namespace yoke
