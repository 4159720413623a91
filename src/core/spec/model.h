// The shape of a language model, and what follows from the shape alone: parameters and FLOPs.
//
// Two families: `llama` (RMSNorm, rotary positions, grouped-query attention, SwiGLU, no biases) and `gpt2` (LayerNorm,
// learned positions, GELU, biases). Sizes are in elements; `vocab` and `max_sequence` in tokens.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/result.h"

namespace yoke {

enum class Family { llama, gpt2 };

struct Model {
  Family family = Family::llama;
  std::int64_t layers = 0;
  std::int64_t hidden = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  // equal to heads without grouped-query attention; always heads for gpt2
  std::int64_t head_dim = 0;  // hidden / heads unless the configuration says otherwise
  std::int64_t ffn = 0;
  std::int64_t vocab = 0;
  std::int64_t max_sequence = 0;
  bool tied = false;          // one matrix for the input and the output embedding
  double rope_theta = 10000;  // llama only
  double norm_eps = 1e-5;
  double init_std = 0.02;  // of fresh weights

  bool operator==(const Model&) const = default;
};

// An error names the field that makes no sense: sizes below 1, heads that kv_heads does not divide, ...
Result<void> check(const Model& model);

// All parameters, a tied matrix counted once.
std::int64_t parameter_count(const Model& model);

// Training FLOPs of one token, forward and backward, by the usual convention 6N + 12 L h s (PaLM, appendix B), where N
// leaves out the input embeddings (tokens, and gpt2's positions: lookups) and counts the output head; h is heads *
// head_dim.
double training_flops_per_token(const Model& model, std::int64_t sequence);

const char* name(Family family);

}  // namespace yoke
