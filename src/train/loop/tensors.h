// Between libtorch's tensors and the checkpoint room's views of bytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>

#include "core/base/result.h"
#include "train/checkpoint/tensor_view.h"

namespace yoke {

// A copy that the checkpoint writer may keep while training goes on.
NamedTensor snapshot(const std::string& name, const at::Tensor& tensor);
// The same outside of memory, in a nameless file in this folder. Kind environment: no room there.
Result<NamedTensor> snapshot_on_disk(const std::string& name, const at::Tensor& tensor, const std::string& folder);

// A tensor of its own from the bytes (which may lie unaligned in a file).
Result<at::Tensor> tensor_from(const TensorView& view, const std::string& name);

}  // namespace yoke
