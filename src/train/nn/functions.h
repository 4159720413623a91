// The differentiable pieces of a transformer layer, each one autograd node that keeps as little as its gradient needs.
//
// On a CPU each runs as one pass of kernels.h; on other devices as libtorch operations. Values have the inputs' type
// (fp32, fp64, bf16 or fp16), arithmetic is in fp32 or wider. Weights are plain leaf tensors.
// Where a weight already has a gradient tensor of its own dtype, the gradient is added to it in place, as autograd's
// accumulation would do, but without the temporary; such functions are therefore for backward(), not for
// torch::autograd::grad().
//
// x is [..., n]; rows are the product of the leading sizes.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "train/nn/kept_inputs.h"

namespace yoke {

// Makes an input of linear() once more, from what is kept anyway; with it the input itself is not kept (selective
// recomputation).
using Again = std::function<at::Tensor()>;

// The rows of weight [vocab, n] that tokens name: [..., n].
at::Tensor embed(const at::Tensor& weight, const at::Tensor& tokens);

// x / rms(x) * weight (Zhang and Sennrich 2019).
at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double eps);
// The same value outside autograd.
at::Tensor rms_norm_value(const at::Tensor& x, const at::Tensor& weight, double eps);

// (x - mean) / standard deviation * weight + bias (Ba et al. 2016).
at::Tensor layer_norm(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, double eps);

// x times each weight's transpose, side by side: [..., sum of out]. Weights are [out, in]; those that lie one after the
// other in memory are multiplied as one matrix.
at::Tensor linear(const at::Tensor& x, std::vector<at::Tensor> weights, Again again = nullptr);

// residual + x times weight's transpose.
at::Tensor linear_residual(const at::Tensor& residual, const at::Tensor& x, const at::Tensor& weight,
                           Again again = nullptr);

// x times weight plus bias, with the weight as [in, out] (GPT-2's way).
at::Tensor affine(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias, Again again = nullptr);

// silu(gate) * up of [..., gate and up side by side] (Shazeer 2020).
at::Tensor swiglu(const at::Tensor& gate_up);
at::Tensor swiglu_value(const at::Tensor& gate_up);

// Rotary positions (Su et al. 2021): cos and sin, each [positions, dim / 2] in the arithmetic type.
struct Rotary {
  at::Tensor cos, sin;
};

struct HeadShape {
  std::int64_t heads, kv_heads, dim;
};

// Cuts [batch, sequence, (heads + 2 kv_heads) * dim] into q, k, v of [batch, heads, sequence, dim], q and k rotated
// unless rotary is null. Each kv head is repeated for the query heads that share it.
std::array<at::Tensor, 3> split_heads(const at::Tensor& qkv, HeadShape shape, const Rotary* rotary);

// Causal attention through libtorch's fused operation: [batch, sequence, heads * dim].
at::Tensor attention(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

// scale * sum over the rows with a target other than -100 of -log softmax(hidden weight^T)[target], as a scalar in
// fp64. hidden is [rows, n], weight [vocab, n]. The logits exist for some rows at a time only. The gradient of the
// logits is made with scale at once, so in fp16 the loss scale belongs there: what an upstream gradient scales later
// has been rounded before.
at::Tensor head_loss(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets, double scale);
// The same in pieces of so many rows; above, of head_rows_at_once().
at::Tensor head_loss(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& targets, double scale,
                     std::int64_t rows_at_once);

// f(x) whose inner values are computed again in the backward pass instead of being kept. f must be deterministic.
// weights are the leaves that f uses besides x. `inputs` keeps x meanwhile; null: the node does.
at::Tensor recompute(const std::function<at::Tensor(const at::Tensor&)>& f, const at::Tensor& x, at::TensorList weights,
                     const std::shared_ptr<KeptInputs>& inputs = nullptr);

}  // namespace yoke
