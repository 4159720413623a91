#include "train/nn/functions_products.h"

#include <ATen/ATen.h>

#include "train/nn/functions_node.h"

namespace yoke {
namespace {

bool through_fp32(const at::Tensor& a) { return a.is_cpu() && a.scalar_type() == at::kHalf; }

}  // namespace

at::Tensor product(const at::Tensor& a, const at::Tensor& b) {
  if (through_fp32(a)) return a.to(at::kFloat).mm(b.to(at::kFloat)).to(at::kHalf);
  return a.mm(b);
}

void product_into(const at::Tensor& out, const at::Tensor& a, const at::Tensor& b) {
  if (through_fp32(a)) {
    out.copy_(a.to(at::kFloat).mm(b.to(at::kFloat)));
    return;
  }
  at::Tensor target = out;
  at::mm_out(target, a, b);
}

at::Tensor product_plus(const at::Tensor& c, const at::Tensor& a, const at::Tensor& b) {
  if (through_fp32(a)) return at::addmm(c.to(at::kFloat), a.to(at::kFloat), b.to(at::kFloat)).to(at::kHalf);
  return at::addmm(c, a, b);
}

void add_product(const at::Tensor& sum, const at::Tensor& a, const at::Tensor& b) {
  at::Tensor target = sum;
  const bool wide = sum.scalar_type() != a.scalar_type();
  if (through_fp32(a)) {
    at::Tensor wide_a = a.to(at::kFloat), wide_b = b.to(at::kFloat);
    if (wide)
      at::addmm_out(target, target, wide_a, wide_b);
    else
      target.copy_(at::addmm(target.to(at::kFloat), wide_a, wide_b));
    return;
  }
  if (!wide) {
    at::addmm_out(target, target, a, b);
    return;
  }
  // No product adds to a wider sum on every device. So rows of it at a time, few enough to stay in a cache.
  const std::int64_t each = std::max<std::int64_t>(1, (std::int64_t{1} << 20) / std::max<std::int64_t>(1, b.size(1)));
  for (std::int64_t first = 0; first < a.size(0); first += each) {
    const std::int64_t n = std::min(each, a.size(0) - first);
    sum.narrow(0, first, n).add_(a.narrow(0, first, n).mm(b));
  }
}

bool one_after_the_other(const std::vector<at::Tensor>& parts) {
  const char* next = nullptr;
  for (const at::Tensor& part : parts) {
    if (!part.defined() || !part.is_contiguous()) return false;
    const char* begin = static_cast<const char*>(part.const_data_ptr());
    if (next != nullptr && (begin != next || !part.storage().is_alias_of(parts[0].storage()))) return false;
    next = begin + part.nbytes();
  }
  return true;
}

at::Tensor stacked(const std::vector<at::Tensor>& parts) {
  if (parts.size() == 1) return parts[0];
  std::int64_t rows = 0;
  for (const at::Tensor& part : parts) rows += part.size(0);
  return parts[0].as_strided({rows, parts[0].size(1)}, {parts[0].size(1), 1});
}

bool accumulates_in_place(const at::Tensor& weight) {
  const at::Tensor& grad = weight.grad();
  return grad.defined() && grad.scalar_type() == weight.scalar_type() && grad.is_contiguous();
}

variable_list weight_gradients(const std::vector<at::Tensor>& weights, const at::Tensor& dy, const at::Tensor& x) {
  bool all = true, in_place = true;
  std::vector<at::Tensor> grads;
  for (const at::Tensor& w : weights) {
    all = all && w.requires_grad();
    in_place = in_place && accumulates_in_place(w);
    grads.push_back(w.grad());
  }
  variable_list result(weights.size());
  if (all && in_place && one_after_the_other(grads)) {
    add_product(stacked(grads), dy.t(), x);
    return result;
  }
  std::int64_t column = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    at::Tensor part = dy.narrow(1, column, weights[i].size(0));
    column += weights[i].size(0);
    if (!weights[i].requires_grad()) continue;
    if (accumulates_in_place(weights[i])) {
      add_product(weights[i].grad(), part.t(), x);
    } else {
      result[i] = product(part.t(), x);
    }
  }
  return result;
}

at::Tensor vector_gradient(const at::Tensor& weight, const at::Tensor& sums) {
  if (!weight.requires_grad()) return {};
  if (accumulates_in_place(weight)) {
    at::Tensor grad = weight.grad();
    grad.add_(sums.to(grad.scalar_type()));
    return {};
  }
  return sums.to(weight.scalar_type());
}

}  // namespace yoke
