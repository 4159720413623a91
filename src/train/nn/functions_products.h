// Matrix products, and the gradients of weights. Inside this room only.
//
// All products sum in fp32 (fp64 for double) and round once, when they store. On a CPU those of fp16 go through fp32
// copies: libtorch's own have no vector instructions there, and are 5 to 40 times slower.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <vector>

namespace yoke {

// a b
at::Tensor product(const at::Tensor& a, const at::Tensor& b);
void product_into(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b);
// c + a b, with c as large or a row
at::Tensor product_plus(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b);
// sum += a b. sum has their type, or fp32 where theirs has 16 bits.
void add_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b);

// Whether contiguous matrices lie one after the other in memory; then stacked() is them as one, of equal width.
bool one_after_the_other(const std::vector<at::Tensor>& parts);
at::Tensor stacked(const std::vector<at::Tensor>& parts);

// Whether the gradient can be added in place where autograd would accumulate it.
bool accumulates_in_place(const at::Tensor& weight);

// The gradients of weights [out_i, in] from dy [rows, sum out] and x [rows, in]: added in place where possible (then
// undefined), undefined also for weights that need none.
torch::autograd::variable_list weight_gradients(const std::vector<at::Tensor>& weights, const at::Tensor& dy,
                                                const at::Tensor& x);

// A vector's gradient from sums in fp32 or fp64, likewise.
at::Tensor vector_gradient(const at::Tensor& weight, const at::Tensor& sums);

}  // namespace yoke
