// The tables of kernels.h for each instruction set; only kernels.cc chooses among them.
#pragma once

#include "train/nn/kernels.h"

namespace yoke {

struct KernelTables {
  const Kernels<float>* f32;
  const Kernels<double>* f64;
  const Kernels<c10::BFloat16>* bf16;
  const Kernels<c10::Half>* f16;
};

KernelTables kernels_base();
KernelTables kernels_avx2();
KernelTables kernels_avx512();

}  // namespace yoke
