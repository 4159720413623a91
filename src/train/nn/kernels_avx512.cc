// kernels.inc for AVX-512 (F, BW, DQ, VL); the flags stand in CMakeLists.txt.
#include "train/nn/kernels_isa.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

namespace yoke {
namespace {
#include "train/nn/kernels.inc"
}  // namespace

KernelTables kernels_avx512() { return {&table<float>, &table<double>, &table<c10::BFloat16>, &table<c10::Half>}; }

}  // namespace yoke
