#include "train/nn/kernels.h"

#include "train/nn/kernels_isa.h"

namespace yoke {
namespace {

const KernelTables& chosen() {
  static const KernelTables tables = [] {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl"))
      return kernels_avx512();
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return kernels_avx2();
#endif
    return kernels_base();
  }();
  return tables;
}

}  // namespace

template <>
const Kernels<float>& kernels<float>() {
  return *chosen().f32;
}
template <>
const Kernels<double>& kernels<double>() {
  return *chosen().f64;
}
template <>
const Kernels<c10::BFloat16>& kernels<c10::BFloat16>() {
  return *chosen().bf16;
}
template <>
const Kernels<c10::Half>& kernels<c10::Half>() {
  return *chosen().f16;
}

}  // namespace yoke
