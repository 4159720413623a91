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
  // The output and its gradient; a piece; the head's gradient, summed in fp32.
  return element * (2 * tokens * hidden + rows * vocab) + 4 * vocab * hidden;
}

double activation_bytes(const Model& m, double element, Recompute recompute, double tokens) {
  const double kept = static_cast<double>(m.layers) * tokens * layer_token_bytes(m, element, recompute);
  const double final_norm_input = element * tokens * static_cast<double>(m.hidden);
  double backward = element * tokens * (m.family == Family::llama ? 3 : 2) * static_cast<double>(m.ffn);
  if (recompute == Recompute::full) backward += tokens * layer_token_bytes(m, element, Recompute::none);
  return kept + final_norm_input + std::max(loss_bytes(m, element, tokens), backward);
}

StateBytes shared_out(StateBytes whole, int zero, std::int64_t shards) {
  const auto d = static_cast<double>(shards);
  if (zero >= 1) whole.optimizer /= d;
  if (zero >= 2) whole.gradients /= d;
  if (zero >= 3) whole.parameters /= d;
  return whole;
}

// The largest piece that ZeRO 3 gathers: a layer, or the embedding.
double unit_parameters(const Model& m) {
  Model fewer = m;
  fewer.layers = m.layers - 1;
  const auto layer = static_cast<double>(parameter_count(m) - parameter_count(fewer));
  return std::max(layer, static_cast<double>(m.vocab) * static_cast<double>(m.hidden));
}

}  // namespace

StateBytes state_bytes(Precision precision, int zero, std::int64_t shards) {
  const bool fp32 = precision == Precision::fp32;
  return shared_out({fp32 ? 4.0 : 2.0, 4, fp32 ? 8.0 : 12.0}, zero, shards);
}

StateBytes state_bytes_of_the_paper(int zero, std::int64_t shards) { return shared_out({2, 2, 12}, zero, shards); }

MemoryPrediction predict_memory(const Model& model, const Layout& layout, std::int64_t sequence, double bucket_mib) {
  const auto parameters = static_cast<double>(parameter_count(model));
  const double element = element_bytes(layout.precision),
               tokens = static_cast<double>(layout.micro_batch) * static_cast<double>(sequence);
  const StateBytes states = state_bytes(layout.precision, layout.zero, layout.shard_group);
  MemoryPrediction memory;
  memory.parameters = Bytes(states.parameters * parameters);
  memory.gradients = Bytes(states.gradients * parameters);
  memory.optimizer = Bytes(states.optimizer * parameters);
  memory.activations = Bytes(activation_bytes(model, element, layout.recompute, tokens));
  if (layout.zero == 2) memory.communication = Bytes(2 * std::min(bucket_mib * 0x1p20, 4 * parameters));
  if (layout.zero == 3) memory.communication = Bytes((2 * 4 + 3 * element) * unit_parameters(model));
  return memory;
}

}  // namespace yoke
