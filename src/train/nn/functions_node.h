// What the functions of functions.h share: what a node keeps, the choice of a kernel, rows. Inside this room only.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include <algorithm>
#include <utility>

#include "core/base/result.h"
#include "train/nn/kernels.h"

namespace yoke {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// What a node keeps for its backward pass besides autograd's own saved variables: those check versions and cannot hold
// closures. Released by the node's own backward, so that activations go as early as they can.
template <class T>
struct Kept : torch::CustomClassHolder {
  T value;
};

template <class T>
void keep(AutogradContext* ctx, T value) {
  auto kept = c10::make_intrusive<Kept<T>>();
  kept->value = std::move(value);
  ctx->saved_data["kept"] = c10::IValue::make_capsule(std::move(kept));
}

template <class T>
T take_kept(AutogradContext* ctx) {
  auto capsule = ctx->saved_data.at("kept").toCapsule();
  return std::move(static_cast<Kept<T>*>(capsule.get())->value);
}

// f(T{}) with the storage type of t.
template <class F>
void dispatch(const at::Tensor& t, F f) {
  switch (t.scalar_type()) {
    case at::kFloat:
      return f(float{});
    case at::kDouble:
      return f(double{});
    case at::kBFloat16:
      return f(c10::BFloat16{});
    case at::kHalf:
      return f(c10::Half{});
    default:
      YOKE_CHECK(false, "no kernel for {}", c10::toString(t.scalar_type()));
  }
}

inline at::ScalarType arithmetic_type(const at::Tensor& t) {
  return t.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

// f(first, last) over ranges of rows, on the threads of this rank.
template <class F>
void over_rows(std::int64_t rows, std::int64_t work_per_row, const F& f) {
  at::parallel_for(0, rows, std::max<std::int64_t>(1, 32768 / std::max<std::int64_t>(1, work_per_row)), f);
}

inline at::Tensor rows_of(const at::Tensor& x) { return x.reshape({-1, x.size(-1)}); }

}  // namespace yoke
