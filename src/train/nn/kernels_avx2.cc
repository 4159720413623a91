// kernels.inc for AVX2 with FMA; the flags stand in CMakeLists.txt.
#include "train/nn/kernels_isa.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <vector>

namespace yoke {
namespace {
#include "train/nn/kernels.inc"
}  // namespace

KernelTables kernels_avx2() { return {&table<float>, &table<double>, &table<c10::BFloat16>, &table<c10::Half>}; }

}  // namespace yoke
