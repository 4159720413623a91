// The element-wise and row-wise loops of the transformer on a CPU, in single passes over memory.
//
// Plain functions on pointers, compiled once for each instruction set (kernels_*.cc) and chosen when the program
// starts. T is the storage type (float, double, bf16, fp16); arithmetic is in fp32, or fp64 for double. Rows are
// contiguous. No function allocates.
#pragma once

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>
#include <type_traits>

namespace yoke {

// What T is computed in.
template <class T>
using Arithmetic = std::conditional_t<std::is_same_v<T, double>, double, float>;

template <class T>
struct Kernels {
  using A = Arithmetic<T>;

  // y = x / rms(x) * w over rows of n; rstd[row] is kept for the backward pass.
  void (*rms_norm)(const T* x, const T* w, T* y, A* rstd, std::int64_t rows, std::int64_t n, double eps);
  // dx, and dw, whose n sums are added to.
  void (*rms_norm_backward)(const T* dy, const T* x, const T* w, const A* rstd, T* dx, double* dw, std::int64_t rows,
                            std::int64_t n);

  // y = (x - mean) / deviation * w + b over rows of n; mean[row] and rstd[row] are kept for the backward pass.
  void (*layer_norm)(const T* x, const T* w, const T* b, T* y, A* mean, A* rstd, std::int64_t rows, std::int64_t n,
                     double eps);
  // dx, and dw_db, whose n sums for w and n sums for b are added to.
  void (*layer_norm_backward)(const T* dy, const T* x, const T* w, const A* mean, const A* rstd, T* dx, double* dw_db,
                              std::int64_t rows, std::int64_t n);

  // gate_up holds rows of [gate (n), up (n)]; y = silu(gate) * up, rows of n.
  void (*swiglu)(const T* gate_up, T* y, std::int64_t rows, std::int64_t n);
  void (*swiglu_backward)(const T* dy, const T* gate_up, T* dgate_up, std::int64_t rows, std::int64_t n);

  // One head of n positions: out[position] = the sum of the `count` heads that lie in_head apart at in[position],
  // rotated. cos and sin hold n x dim/2 numbers; null: no rotation. The pairs are (i, i + dim/2), as in Hugging Face's
  // Llama. sign -1 rotates back.
  void (*rotate_sum)(const T* in, std::int64_t in_stride, std::int64_t in_head, std::int64_t count, T* out,
                     std::int64_t out_stride, const A* cos, const A* sin, A sign, std::int64_t n, std::int64_t dim);

  // out += the sum of the `count` rows of n that `which` names.
  void (*add_rows)(const T* rows, const std::int64_t* which, std::int64_t count, T* out, std::int64_t n);

  // In place, rows of n logits become scale * (softmax - onehot(target)); a row whose target is -100 becomes 0. Returns
  // the sum of -log softmax[target]. With gradient false the logits stay as they are.
  double (*cross_entropy)(T* logits, const std::int64_t* targets, std::int64_t rows, std::int64_t n, double scale,
                          bool gradient);
};

// For this machine's processor.
template <class T>
const Kernels<T>& kernels();

}  // namespace yoke
