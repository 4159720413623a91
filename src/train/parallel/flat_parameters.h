// All parameters of a module in one flat buffer, and their gradients in another: what buckets, the optimizer, the
// gradient norm and checkpoints work on.
//
// Parameters become views of `values`, in the order given. Gradients are fp32 (fp64 for fp64 parameters): where the
// parameters have that dtype too, each parameter's .grad is a view of `gradients`, and autograd adds to it in place;
// 16-bit parameters' gradients are added to it as they arrive (add_gradient) and dropped.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "core/base/result.h"

namespace yoke {

struct FlatEntry {
  std::string name;
  at::Tensor parameter;
  std::int64_t offset = 0;  // elements
  std::int64_t numel = 0;
};

class FlatParameters {
 public:
  FlatParameters() = default;

  // Parameters that appear twice (tied) count once, under their first name; those that need no gradient are left out.
  // All must have one dtype and device: kind usage names the first that does not.
  static Result<FlatParameters> make(const std::vector<std::pair<std::string, at::Tensor>>& named);

  const std::vector<FlatEntry>& entries() const { return entries_; }
  std::int64_t numel() const { return values_.defined() ? values_.numel() : 0; }
  const at::Tensor& values() const { return values_; }
  const at::Tensor& gradients() const { return gradients_; }
  bool wide() const { return values_.scalar_type() == gradients_.scalar_type(); }  // parameters are not 16-bit

  // The part of a flat tensor that belongs to an entry, in its shape.
  static at::Tensor view(const at::Tensor& flat, const FlatEntry& entry);

  void zero_gradients();
  // Makes the flat buffer hold what backward left in the parameter's .grad, whatever tensor that is. Idempotent.
  void collect_gradient(const FlatEntry& entry);

 private:
  std::vector<FlatEntry> entries_;
  at::Tensor values_, gradients_;
};

}  // namespace yoke
