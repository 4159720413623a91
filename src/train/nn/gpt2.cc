#include <ATen/ATen.h>

#include "train/nn/families.h"
#include "train/nn/functions.h"
#include "train/nn/weight_access.h"

namespace yoke {
namespace {

class Gpt2 final : public Transformer {
 public:
  Gpt2(const Model& m, const TransformerOptions& options) : Transformer(m, options) {
    tokens_ = parameter("transformer.wte.weight", {m.vocab, m.hidden});
    positions_ = parameter("transformer.wpe.weight", {m.max_sequence, m.hidden});
    for (std::int64_t i = 0; i < m.layers; ++i) {
      std::string p = fmt::format("transformer.h.{}.", i);
      Layer layer;
      layer.attention_norm = norm(p + "ln_1");
      layer.qkv = matrix(p + "attn.c_attn", m.hidden, 3 * m.hidden);
      layer.out = matrix(p + "attn.c_proj", m.hidden, m.hidden);
      layer.mlp_norm = norm(p + "ln_2");
      layer.up = matrix(p + "mlp.c_fc", m.hidden, m.ffn);
      layer.down = matrix(p + "mlp.c_proj", m.ffn, m.hidden);
      layers_.push_back(std::move(layer));
    }
    norm_ = norm("transformer.ln_f");
    head_ = m.tied ? tokens_ : parameter("lm_head.weight", {m.vocab, m.hidden});
  }

 private:
  struct Affine {
    at::Tensor weight, bias;
  };
  struct Layer {
    Affine attention_norm, qkv, out, mlp_norm, up, down;

    std::vector<at::Tensor> weights() const {
      std::vector<at::Tensor> all;
      for (const Affine* a : {&attention_norm, &qkv, &out, &mlp_norm, &up, &down})
        all.insert(all.end(), {a->weight, a->bias});
      return all;
    }
  };

  Affine norm(const std::string& name) {
    return {parameter(name + ".weight", {model_.hidden}), parameter(name + ".bias", {model_.hidden})};
  }
  Affine matrix(const std::string& name, std::int64_t in, std::int64_t out) {
    return {parameter(name + ".weight", {in, out}), parameter(name + ".bias", {out})};
  }

  at::Tensor hidden(const at::Tensor& inputs) override {
    at::Tensor x = embed(tokens_, inputs);
    use_weight(positions_);
    x = x + positions_.narrow(0, 0, inputs.size(1));
    for (const Layer& layer : layers_) {
      if (recompute_ == Recompute::full)
        x = recompute([this, &layer](const at::Tensor& in) { return forward_layer(layer, in); }, x, layer.weights(),
                      kept_inputs_);
      else
        x = forward_layer(layer, x);
    }
    return layer_norm(x, norm_);
  }

  const at::Tensor& head_weight() const override { return head_; }

  at::Tensor layer_norm(const at::Tensor& x, const Affine& w) const {
    return yoke::layer_norm(x, w.weight, w.bias, model_.norm_eps);
  }

  // What selective recomputation makes again: the norms' outputs and the GELU's.
  Again again(std::function<at::Tensor()> make) const {
    if (recompute_ != Recompute::selective) return nullptr;
    return [make = std::move(make)] {
      at::NoGradGuard no_grad;
      return make();
    };
  }

  at::Tensor forward_layer(const Layer& layer, const at::Tensor& x) {
    Again normed = again([this, x = x.detach(), w = layer.attention_norm] { return layer_norm(x, w); });
    at::Tensor qkv = affine(layer_norm(x, layer.attention_norm), layer.qkv.weight, layer.qkv.bias, normed);
    auto [q, k, v] = split_heads(qkv, {model_.heads, model_.heads, model_.head_dim}, nullptr);
    at::Tensor y = x + affine(attention(q, k, v), layer.out.weight, layer.out.bias);
    Again normed_again = again([this, y = y.detach(), w = layer.mlp_norm] { return layer_norm(y, w); });
    at::Tensor up = affine(layer_norm(y, layer.mlp_norm), layer.up.weight, layer.up.bias, normed_again);
    Again active = again([up = up.detach()] { return at::gelu(up, "tanh"); });
    return y + affine(at::gelu(up, "tanh"), layer.down.weight, layer.down.bias, active);
  }

  at::Tensor tokens_, positions_, head_;
  Affine norm_;
  std::vector<Layer> layers_;
};

}  // namespace

std::shared_ptr<Transformer> make_gpt2(const Model& model, const TransformerOptions& options) {
  return std::make_shared<Gpt2>(model, options);
}

}  // namespace yoke
