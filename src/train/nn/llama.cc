#include <ATen/ATen.h>

#include "train/nn/families.h"
#include "train/nn/functions.h"

namespace yoke {
namespace {

class Llama final : public Transformer {
 public:
  Llama(const Model& m, const TransformerOptions& options) : Transformer(m, options) {
    embedding_ = parameter("model.embed_tokens.weight", {m.vocab, m.hidden});
    for (std::int64_t i = 0; i < m.layers; ++i) {
      std::string p = fmt::format("model.layers.{}.", i);
      std::int64_t q = m.heads * m.head_dim, kv = m.kv_heads * m.head_dim;
      Layer layer;
      layer.attention_norm = parameter(p + "input_layernorm.weight", {m.hidden});
      layer.q = parameter(p + "self_attn.q_proj.weight", {q, m.hidden});
      layer.k = parameter(p + "self_attn.k_proj.weight", {kv, m.hidden});
      layer.v = parameter(p + "self_attn.v_proj.weight", {kv, m.hidden});
      layer.o = parameter(p + "self_attn.o_proj.weight", {m.hidden, q});
      layer.mlp_norm = parameter(p + "post_attention_layernorm.weight", {m.hidden});
      layer.gate = parameter(p + "mlp.gate_proj.weight", {m.ffn, m.hidden});
      layer.up = parameter(p + "mlp.up_proj.weight", {m.ffn, m.hidden});
      layer.down = parameter(p + "mlp.down_proj.weight", {m.hidden, m.ffn});
      layers_.push_back(std::move(layer));
    }
    norm_ = parameter("model.norm.weight", {m.hidden});
    head_ = m.tied ? embedding_ : parameter("lm_head.weight", {m.vocab, m.hidden});
  }

 private:
  struct Layer {
    at::Tensor attention_norm, q, k, v, o, mlp_norm, gate, up, down;
  };

  at::Tensor hidden(const at::Tensor& inputs) override {
    prepare_rotary(inputs.size(1));
    at::Tensor x = embed(embedding_, inputs);
    for (const Layer& layer : layers_) {
      if (recompute_ == Recompute::full)
        x = recompute([this, &layer](const at::Tensor& in) { return forward_layer(layer, in); }, x,
                      {layer.attention_norm, layer.q, layer.k, layer.v, layer.o, layer.mlp_norm, layer.gate, layer.up,
                       layer.down},
                      kept_inputs_);
      else
        x = forward_layer(layer, x);
    }
    return rms_norm(x, norm_, model_.norm_eps);
  }

  const at::Tensor& head_weight() const override { return head_; }

  at::Tensor forward_layer(const Layer& layer, const at::Tensor& x) {
    bool selective = recompute_ == Recompute::selective;
    double eps = model_.norm_eps;
    Again normed, normed_again, product;
    if (selective) normed = [x = x.detach(), w = layer.attention_norm, eps] { return rms_norm_value(x, w, eps); };
    at::Tensor qkv = linear(rms_norm(x, layer.attention_norm, eps), {layer.q, layer.k, layer.v}, normed);
    auto [q, k, v] = split_heads(qkv, {model_.heads, model_.kv_heads, model_.head_dim}, &rotary_);
    at::Tensor y = linear_residual(x, attention(q, k, v), layer.o);
    if (selective) normed_again = [y = y.detach(), w = layer.mlp_norm, eps] { return rms_norm_value(y, w, eps); };
    at::Tensor gate_up = linear(rms_norm(y, layer.mlp_norm, eps), {layer.gate, layer.up}, normed_again);
    if (selective) product = [gate_up = gate_up.detach()] { return swiglu_value(gate_up); };
    return linear_residual(y, swiglu(gate_up), layer.down, product);
  }

  // The angles as Hugging Face makes them: frequencies and products in the arithmetic type.
  void prepare_rotary(std::int64_t sequence) {
    if (rotary_.cos.defined() && rotary_.cos.size(0) >= sequence) return;
    at::NoGradGuard no_grad;
    auto options = at::TensorOptions().dtype(options_.dtype() == at::kDouble ? at::kDouble : at::kFloat);
    at::Tensor exponent = at::arange(0, model_.head_dim, 2, options) / static_cast<double>(model_.head_dim);
    at::Tensor frequency = 1.0 / at::pow(at::scalar_tensor(model_.rope_theta, options), exponent);
    at::Tensor angle = at::outer(at::arange(sequence, options), frequency);
    rotary_ = {angle.cos().to(options_.device()).contiguous(), angle.sin().to(options_.device()).contiguous()};
  }

  at::Tensor embedding_, norm_, head_;
  std::vector<Layer> layers_;
  Rotary rotary_;
};

}  // namespace

std::shared_ptr<Transformer> make_llama(const Model& model, const TransformerOptions& options) {
  return std::make_shared<Llama>(model, options);
}

}  // namespace yoke
