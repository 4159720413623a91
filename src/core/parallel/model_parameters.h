// The parameters of a model by name and size, known before anything is built: what train.freeze chooses from, and what
// the memory is predicted for. The engine's modules have the same (train/nn/transformer_test.cc).
#pragma once

#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/parallel/shard_map.h"
#include "core/spec/model.h"

namespace yoke {

// In the order of the forward pass, with the names of Hugging Face's files; a tied matrix once, as the input embedding.
std::vector<ParameterSize> model_parameters(const Model& model);

// train.freeze: those that a pattern (fnmatch: * and ?) fits get no gradient. Kind usage: a pattern fits none, or none
// is left to train.
Result<void> freeze(std::vector<ParameterSize>& parameters, const std::vector<std::string>& patterns);

}  // namespace yoke
