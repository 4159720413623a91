// The built-in language models as torch modules: single-device code that knows nothing of ranks.
//
// Parameters carry Hugging Face's names ("model.layers.0.self_attn.q_proj.weight"), so checkpoints are their files.
// Gradients come through loss().backward(). Not thread-safe; each rank has its own.
#pragma once

#include <torch/nn/module.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/spec/model.h"
#include "core/spec/run_spec.h"
#include "train/nn/kept_inputs.h"

namespace yoke {

using NamedParameters = std::vector<std::pair<std::string, at::Tensor>>;

struct TransformerOptions {
  at::ScalarType type = at::kFloat;
  at::Device device = at::kCPU;
  Recompute recompute = Recompute::none;
  // none: parameters have a shape and no memory, for who gives them some at once (FlatParameters).
  enum class ParameterMemory { own, none } memory = ParameterMemory::own;
  std::shared_ptr<KeptInputs> kept_inputs = nullptr;  // of layers recomputed in full; null: with the device
};

class Transformer : public torch::nn::Module {
 public:
  // inputs and targets: [batch, sequence] of int64. scale * the sum of the losses of all targets but those of -100, a
  // scalar in fp64.
  at::Tensor loss(const at::Tensor& inputs, const at::Tensor& targets, double scale);
  // [batch, sequence, vocab]
  at::Tensor logits(const at::Tensor& inputs);

  // In the order of the forward pass. A tied matrix appears once, under the name of the input embedding.
  const NamedParameters& ordered_parameters() const { return ordered_; }
  const Model& model() const { return model_; }

 protected:
  Transformer(const Model& model, TransformerOptions options)
      : model_(model),
        options_(at::TensorOptions().dtype(options.type).device(options.device)),
        recompute_(options.recompute),
        kept_inputs_(std::move(options.kept_inputs)),
        memory_(options.memory) {}

  // The last norm's output, [batch, sequence, hidden].
  virtual at::Tensor hidden(const at::Tensor& inputs) = 0;
  virtual const at::Tensor& head_weight() const = 0;

  // A new parameter under a dotted name, uninitialised.
  at::Tensor parameter(const std::string& name, std::vector<std::int64_t> sizes);

  Model model_;
  at::TensorOptions options_;
  Recompute recompute_;
  std::shared_ptr<KeptInputs> kept_inputs_;

 private:
  TransformerOptions::ParameterMemory memory_;
  NamedParameters ordered_;
};

// A model of that shape with uninitialised parameters.
std::shared_ptr<Transformer> make_transformer(const Model& model, const TransformerOptions& options);

// Fresh weights, the same for the same seed whatever the device, precision or number of ranks: normal with
// model.init_std (GPT-2: the projections back into the residual stream with that over sqrt(2 layers)), norms 1, biases
// 0. Calls set(name, fp32 values on the CPU) for each parameter in order.
void fresh_parameters(const Transformer& transformer, std::uint64_t seed,
                      const std::function<void(const std::string&, const at::Tensor&)>& set);

}  // namespace yoke
