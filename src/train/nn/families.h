// The makers of each model family; only transformer.cc chooses among them.
#pragma once

#include <memory>

#include "train/nn/transformer.h"

namespace yoke {

// Llama: RMSNorm, rotary positions, grouped-query attention, SwiGLU, no biases (Touvron et al. 2023).
std::shared_ptr<Transformer> make_llama(const Model& model, const TransformerOptions& options);

// GPT-2: LayerNorm, learned positions, GELU (tanh form), biases (Radford et al. 2019).
std::shared_ptr<Transformer> make_gpt2(const Model& model, const TransformerOptions& options);

}  // namespace yoke
