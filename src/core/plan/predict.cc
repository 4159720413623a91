#include "core/plan/predict.h"

#include <algorithm>

#include "core/parallel/head_rows.h"

namespace yoke {
namespace {

double element_bytes(Precision precision) { return precision == Precision::fp32 ? 4 : 2; }

// What a layer keeps of one token.
double layer_token_bytes(const Model& m, double element, Recompute recompute) {
  const auto hidden = static_cast<double>(m.hidden), ffn = static_cast<double>(m.ffn),
             heads = static_cast<double>(m.heads);
  const double attention = 4 * heads * static_cast<double>(m.head_dim);
  const bool llama = m.family == Family::llama;
  const double statistics = 4 * (heads + (llama ? 2 : 4));
  switch (recompute) {
    case Recompute::none:
      return element * (4 * hidden + attention + (llama ? 3 : 2) * ffn) + statistics;
    case Recompute::selective:
      return element * (2 * hidden + attention + (llama ? 2 : 1) * ffn) + statistics;
    case Recompute::full:
      return element * hidden;
  }
  return 0;
}

double loss_bytes(const Model& m, double element, double tokens) {
  const auto hidden = static_cast<double>(m.hidden), vocab = static_cast<double>(m.vocab);
  const auto rows = static_cast<double>(head_rows_at_once(m.vocab));
  if (tokens <= rows) return element * tokens * (hidden + vocab);
  return element * (2 * tokens * hidden + rows * vocab +
                    vocab * hidden);  // the output's and its gradient; a piece; the head's gradient
}

double activation_bytes(const Model& m, double element, Recompute recompute, double tokens) {
  const double kept = static_cast<double>(m.layers) * tokens * layer_token_bytes(m, element, recompute);
  const double final_norm_input = element * tokens * static_cast<double>(m.hidden);
  double backward = element * tokens * (m.family == Family::llama ? 3 : 2) * static_cast<double>(m.ffn);
  if (recompute == Recompute::full) backward += tokens * layer_token_bytes(m, element, Recompute::none);
  return kept + final_norm_input + std::max(loss_bytes(m, element, tokens), backward);
}

}  // namespace

MemoryPrediction predict_memory(const Model& model, Precision precision, Recompute recompute, std::int64_t micro_batch,
                                std::int64_t sequence, std::int64_t data_ranks, double bucket_mib) {
  const auto parameters = static_cast<double>(parameter_count(model));
  const double element = element_bytes(precision),
               tokens = static_cast<double>(micro_batch) * static_cast<double>(sequence);
  MemoryPrediction memory;
  memory.parameters = Bytes(element * parameters);
  memory.gradients = Bytes(4 * parameters);
  memory.optimizer = Bytes((precision == Precision::fp32 ? 8 : 12) * parameters);
  memory.activations = Bytes(activation_bytes(model, element, recompute, tokens));
  if (data_ranks > 1) memory.communication = std::min(Bytes(bucket_mib * 0x1p20), memory.gradients);
  return memory;
}

}  // namespace yoke
