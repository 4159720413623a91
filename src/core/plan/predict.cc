#include "core/plan/predict.h"

#include <algorithm>

#include "core/parallel/head_rows.h"
#include "core/parallel/model_parameters.h"
#include "core/parallel/offload_pages.h"

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

// layers: that keep something in memory.
double activation_bytes(const Model& m, double element, Recompute recompute, double tokens, std::int64_t layers) {
  const double kept = static_cast<double>(layers) * tokens * layer_token_bytes(m, element, recompute);
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

// Parameters of ZeRO 3's largest unit, and of the largest that is trained.
struct LargestUnit {
  double numel = 0, trainable = 0;
};
LargestUnit largest_unit(const std::vector<ParameterSize>& parameters) {
  LargestUnit largest;
  for (const ShardUnit& unit : make_shard_map(parameters, layer_units(parameters, 0), 1).units) {
    const auto numel = static_cast<double>(unit.numel);
    largest.numel = std::max(largest.numel, numel);
    if (unit.trainable) largest.trainable = std::max(largest.trainable, numel);
  }
  return largest;
}

// In ZeRO 3: the gradients of two of the largest units, and the values of three.
double gathered_bytes(const LargestUnit& largest, double element) {
  return 2 * 4 * largest.trainable + 3 * element * largest.numel;
}

// The copy that a rank makes of its share of a checkpoint.
double copied_bytes(const std::vector<ParameterSize>& parameters, double element, std::int64_t ranks) {
  double all = 0, largest = 0;
  for (const ParameterSize& p : parameters) {
    const double bytes = (p.trainable ? 12 : element) * static_cast<double>(p.numel);
    all += bytes;
    largest = std::max(largest, bytes);
  }
  return std::max(all / static_cast<double>(ranks), largest);
}

}  // namespace

StateBytes state_bytes(Precision precision, int zero, std::int64_t shards) {
  const bool fp32 = precision == Precision::fp32;
  return shared_out({fp32 ? 4.0 : 2.0, 4, fp32 ? 8.0 : 12.0}, zero, shards);
}

StateBytes state_bytes_of_the_paper(int zero, std::int64_t shards) { return shared_out({2, 2, 12}, zero, shards); }

Result<MemoryPrediction> predict_memory(const RunSpec& spec, const Layout& layout) {
  const Model& model = spec.model.shape;
  std::vector<ParameterSize> parameters = model_parameters(model);
  YOKE_TRY_VOID(freeze(parameters, spec.train.freeze));
  double all = 0, trainable = 0;
  for (const ParameterSize& p : parameters) {
    all += static_cast<double>(p.numel);
    if (p.trainable) trainable += static_cast<double>(p.numel);
  }
  const double element = element_bytes(layout.precision),
               tokens = static_cast<double>(layout.micro_batch) * static_cast<double>(spec.data.sequence);
  const StateBytes states = state_bytes(layout.precision, layout.zero, layout.shard_group);
  MemoryPrediction memory;
  memory.parameters = Bytes(states.parameters * all);
  memory.gradients = Bytes(states.gradients * trainable);
  memory.optimizer = Bytes(states.optimizer * trainable);
  const auto pages = static_cast<double>(offload_pages_in_memory);
  if (spec.offload.optimizer == Offload::file) {
    const double page = static_cast<double>(offload_page_elements) * state_bytes(layout.precision, 0, 1).optimizer;
    memory.optimizer = std::min(memory.optimizer, Bytes(pages * page));
  }
  if (spec.offload.parameters == Offload::file)
    memory.parameters =
        Bytes(pages * element * largest_unit(parameters).numel / static_cast<double>(layout.shard_group));
  std::int64_t layers = model.layers;
  if (spec.offload.activations == Offload::file) layers = std::min(layers, offload_pages_in_memory + 1);  // and in use
  memory.activations = Bytes(activation_bytes(model, element, layout.recompute, tokens, layers));
  if (layout.zero == 2) memory.communication = Bytes(2 * std::min(spec.train.bucket_mib * 0x1p20, 4 * trainable));
  if (layout.zero == 3) memory.communication = Bytes(gathered_bytes(largest_unit(parameters), element));
  if (spec.offload.optimizer != Offload::file && spec.offload.parameters != Offload::file)  // else it is in a file too
    memory.checkpoint = Bytes(copied_bytes(parameters, element, layout.ranks()));
  memory.checkpoint_in_training = spec.checkpoint.every > 0 && spec.checkpoint.every < spec.train.steps;
  return memory;
}

}  // namespace yoke
