// For this room's tests: the functions against plain libtorch operations in fp64.
#pragma once

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <functional>
#include <string>
#include <vector>

namespace yoke {

inline const std::vector<at::ScalarType> all_types = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf};

using TensorFunction = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

// Half the distance between 1 and the next number: the relative error of one rounding.
inline double rounding(at::ScalarType type) {
  switch (type) {
    case at::kDouble:
      return 0x1p-53;
    case at::kFloat:
      return 0x1p-24;
    case at::kBFloat16:
      return 0x1p-8;
    default:
      return 0x1p-11;
  }
}

// What a result may be off that was rounded so many times to its type, with arithmetic in fp32 (fp64 for double) whose
// sums of some hundred terms cost some roundings of their own.
inline double tolerance(at::ScalarType type, double roundings) {
  return roundings * rounding(type) + 32 * rounding(type == at::kDouble ? at::kDouble : at::kFloat);
}

// Of a from b, as a share of b.
inline double relative_error(const at::Tensor& a, const at::Tensor& b) {
  const double size = b.to(at::kDouble).norm().item<double>(),
               error = (a.to(at::kDouble) - b.to(at::kDouble)).norm().item<double>();
  return error == 0 ? 0 : error / size;
}

// Normal numbers that the type holds exactly.
inline at::Tensor numbers(std::vector<std::int64_t> sizes, at::ScalarType type, double spread = 1) {
  return (at::randn(sizes, at::kDouble) * spread).to(type);
}

// f of leaves with these values against the reference of the same values in fp64: the result, and the gradients of all
// floating-point inputs, each within the tolerance for so many roundings.
inline void expect_same(const TensorFunction& f, const TensorFunction& reference, const std::vector<at::Tensor>& values,
                        double roundings, double gradient_roundings) {
  std::vector<at::Tensor> ours, exact;
  at::ScalarType type = values[0].scalar_type();
  for (const at::Tensor& v : values) {
    ours.push_back(v.is_floating_point() ? v.clone().requires_grad_(true) : v);
    exact.push_back(v.is_floating_point() ? v.to(at::kDouble, false, true).requires_grad_(true) : v);
  }
  at::Tensor y = f(ours), expected = reference(exact);
  ASSERT_EQ(y.sizes(), expected.sizes());
  EXPECT_LT(relative_error(y, expected), tolerance(type, roundings)) << "result";
  at::Tensor upstream = expected.dim() == 0 ? at::ones({}, at::kDouble) : numbers(y.sizes().vec(), type);
  y.backward(upstream.to(y.scalar_type()));
  expected.backward(upstream.to(at::kDouble));
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (!values[i].is_floating_point()) continue;
    ASSERT_TRUE(ours[i].grad().defined()) << "input " << i;
    EXPECT_EQ(ours[i].grad().scalar_type(), type);
    EXPECT_LT(relative_error(ours[i].grad(), exact[i].grad()), tolerance(type, gradient_roundings)) << "input " << i;
  }
}

// With one thread and with three.
template <class F>
void with_threads(const F& f) {
  for (int threads : {1, 3}) {
    SCOPED_TRACE(testing::Message() << threads << " threads");
    at::set_num_threads(threads);
    f();
  }
  at::set_num_threads(1);
}

}  // namespace yoke
