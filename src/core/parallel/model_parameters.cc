#include "core/parallel/model_parameters.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>

namespace yoke {
namespace {

using Parameters = std::vector<ParameterSize>;

Parameters llama_parameters(const Model& m) {
  const std::int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim;
  Parameters all{{"model.embed_tokens.weight", m.vocab * m.hidden}};
  for (std::int64_t i = 0; i < m.layers; ++i) {
    const std::string layer = fmt::format("model.layers.{}.", i);
    all.push_back({layer + "input_layernorm.weight", m.hidden});
    all.push_back({layer + "self_attn.q_proj.weight", q * m.hidden});
    all.push_back({layer + "self_attn.k_proj.weight", kv * m.hidden});
    all.push_back({layer + "self_attn.v_proj.weight", kv * m.hidden});
    all.push_back({layer + "self_attn.o_proj.weight", m.hidden * q});
    all.push_back({layer + "post_attention_layernorm.weight", m.hidden});
    all.push_back({layer + "mlp.gate_proj.weight", m.ffn * m.hidden});
    all.push_back({layer + "mlp.up_proj.weight", m.ffn * m.hidden});
    all.push_back({layer + "mlp.down_proj.weight", m.hidden * m.ffn});
  }
  all.push_back({"model.norm.weight", m.hidden});
  return all;
}

Parameters gpt2_parameters(const Model& m) {
  Parameters all{{"transformer.wte.weight", m.vocab * m.hidden}, {"transformer.wpe.weight", m.max_sequence * m.hidden}};
  auto affine = [&](const std::string& name, std::int64_t weights, std::int64_t biases) {
    all.push_back({name + ".weight", weights});
    all.push_back({name + ".bias", biases});
  };
  for (std::int64_t i = 0; i < m.layers; ++i) {
    const std::string layer = fmt::format("transformer.h.{}.", i);
    affine(layer + "ln_1", m.hidden, m.hidden);
    affine(layer + "attn.c_attn", m.hidden * 3 * m.hidden, 3 * m.hidden);
    affine(layer + "attn.c_proj", m.hidden * m.hidden, m.hidden);
    affine(layer + "ln_2", m.hidden, m.hidden);
    affine(layer + "mlp.c_fc", m.hidden * m.ffn, m.ffn);
    affine(layer + "mlp.c_proj", m.ffn * m.hidden, m.hidden);
  }
  affine("transformer.ln_f", m.hidden, m.hidden);
  return all;
}

}  // namespace

std::vector<ParameterSize> model_parameters(const Model& model) {
  Parameters all = model.family == Family::llama ? llama_parameters(model) : gpt2_parameters(model);
  if (!model.tied) all.push_back({"lm_head.weight", model.vocab * model.hidden});
  return all;
}

Result<void> freeze(std::vector<ParameterSize>& parameters, const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns) {
    bool any = false;
    for (ParameterSize& parameter : parameters) {
      if (fnmatch(pattern.c_str(), parameter.name.c_str(), 0) != 0) continue;
      any = true;
      parameter.trainable = false;
    }
    if (!any)
      return fail(ErrorKind::usage, fmt::format("train.freeze: no parameter's name fits \"{}\"", pattern),
                  "names are those of Hugging Face's files, as in \"model.layers.0.mlp.up_proj.weight\"");
  }
  if (std::none_of(parameters.begin(), parameters.end(), [](const ParameterSize& p) { return p.trainable; }))
    return fail(ErrorKind::usage, "train.freeze: no parameter is left to train",
                "name only the parameters that are to stay as they are");
  return {};
}

}  // namespace yoke
