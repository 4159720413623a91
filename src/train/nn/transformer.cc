#include "train/nn/transformer.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <cmath>

#include "core/base/text.h"
#include "train/nn/families.h"
#include "train/nn/functions.h"

namespace yoke {

at::Tensor Transformer::parameter(const std::string& name, std::vector<std::int64_t> sizes) {
  at::Tensor value = at::empty(sizes, options_).requires_grad_(true);
  if (memory_ == TransformerOptions::ParameterMemory::none)
    value.storage().set_data_ptr(c10::DataPtr(nullptr, options_.device()));
  // torch's modules know no dots in names: each part but the last is a child module.
  torch::nn::Module* place = this;
  std::vector<std::string> parts = split(name, '.');
  for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
    std::shared_ptr<torch::nn::Module> child;
    for (auto& existing : place->named_children())
      if (existing.key() == parts[i]) child = existing.value();
    if (child == nullptr) child = place->register_module(parts[i], std::make_shared<torch::nn::Module>());
    place = child.get();
  }
  place->register_parameter(parts.back(), value);
  ordered_.emplace_back(name, value);
  return value;
}

at::Tensor Transformer::loss(const at::Tensor& inputs, const at::Tensor& targets, double scale) {
  at::Tensor x = hidden(inputs);
  return head_loss(x.reshape({-1, model_.hidden}), head_weight(), targets.reshape({-1}), scale);
}

at::Tensor Transformer::logits(const at::Tensor& inputs) { return linear(hidden(inputs), {head_weight()}); }

std::shared_ptr<Transformer> make_transformer(const Model& model, const TransformerOptions& options) {
  switch (model.family) {
    case Family::llama:
      return make_llama(model, options);
    case Family::gpt2:
      return make_gpt2(model, options);
  }
  YOKE_CHECK(false, "unknown family");
}

void fresh_parameters(const Transformer& transformer, std::uint64_t seed,
                      const std::function<void(const std::string&, const at::Tensor&)>& set) {
  const Model& model = transformer.model();
  std::uint64_t index = 0;
  for (const auto& [name, parameter] : transformer.ordered_parameters()) {
    at::Tensor value;
    if (name.ends_with("bias")) {
      value = at::zeros(parameter.sizes(), at::kFloat);
    } else if (parameter.dim() == 1) {
      value = at::ones(parameter.sizes(), at::kFloat);
    } else {
      bool into_residual = model.family == Family::gpt2 && name.ends_with("c_proj.weight");
      double std = into_residual ? model.init_std / std::sqrt(2.0 * static_cast<double>(model.layers)) : model.init_std;
      // A stream of its own for each parameter, so that a rank that holds only some draws the same values.
      at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(seed * 1000003 + index);
      value = at::empty(parameter.sizes(), at::kFloat).normal_(0, std, generator);
    }
    set(name, value);
    ++index;
  }
}

}  // namespace yoke
