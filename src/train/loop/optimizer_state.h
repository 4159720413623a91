// What libtorch's optimizers remember about a tensor that they update, part by part.
//
// Adam, AdamW, SGD, RMSprop, Adagrad, and what derives from them: those that work element by element, so that their
// state may be cut like the tensor.
#pragma once

#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <vector>

namespace yoke {

// A tensor in the shape of the one that is updated (undefined where the optimizer does not use it), or a number.
struct StatePart {
  const char* name;  // libtorch's, and PyTorch's in Python
  at::Tensor* tensor = nullptr;
  std::int64_t* number = nullptr;
};

// Into the state, which must outlive them. Empty for another optimizer's.
std::vector<StatePart> parts_of(torch::optim::OptimizerParamState& state);

// As it is before the first step. Null for another optimizer.
std::unique_ptr<torch::optim::OptimizerParamState> empty_state(const torch::optim::Optimizer& optimizer);

}  // namespace yoke
