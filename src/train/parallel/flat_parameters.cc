#include "train/parallel/flat_parameters.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <unordered_set>

#include "train/comm/memory.h"

namespace yoke {

namespace {

// A parameter's place in the flat gradients as a tensor of its own: torch::optim's zero_grad() detaches gradients in
// place, which autograd forbids for views.
at::Tensor gradient_place(const at::Tensor& gradients, const FlatEntry& entry) {
  return FlatParameters::view(gradients, entry).variable_data();
}

}  // namespace

Result<FlatParameters> FlatParameters::make(const std::vector<std::pair<std::string, at::Tensor>>& named) {
  FlatParameters flat;
  std::unordered_set<const void*> seen;
  std::int64_t numel = 0;
  for (const auto& [name, parameter] : named) {
    if (!parameter.requires_grad() || !seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    const at::Tensor& first = flat.entries_.empty() ? parameter : flat.entries_.front().parameter;
    if (parameter.options().dtype() != first.options().dtype() || parameter.device() != first.device() ||
        !parameter.is_floating_point())
      return fail(
          ErrorKind::usage,
          fmt::format("parameter {} is {} on {}, but {} is {} on {}", name, c10::toString(parameter.scalar_type()),
                      parameter.device().str(), flat.entries_.empty() ? name : flat.entries_.front().name,
                      c10::toString(first.scalar_type()), first.device().str()),
          "move the module to one floating-point dtype and one device first");
    flat.entries_.push_back({name, parameter, numel, parameter.numel()});
    numel += parameter.numel();
  }
  if (flat.entries_.empty()) return fail(ErrorKind::usage, "the module has no parameter that needs a gradient");

  at::NoGradGuard no_grad;
  at::TensorOptions options = flat.entries_.front().parameter.options().requires_grad(false);
  {
    MemoryScope scope(MemoryPart::parameters);
    flat.values_ = at::empty({numel}, options);
  }
  {
    MemoryScope scope(MemoryPart::gradients);
    flat.gradients_ = at::zeros({numel}, options.dtype(options.dtype() == at::kDouble ? at::kDouble : at::kFloat));
  }
  for (FlatEntry& entry : flat.entries_) {
    at::Tensor place = view(flat.values_, entry);
    place.copy_(entry.parameter.detach());
    entry.parameter.set_data(place);
    if (flat.wide()) entry.parameter.mutable_grad() = gradient_place(flat.gradients_, entry);
  }
  return flat;
}

at::Tensor FlatParameters::view(const at::Tensor& flat, const FlatEntry& entry) {
  return flat.narrow(0, entry.offset, entry.numel).view(entry.parameter.sizes());
}

void FlatParameters::zero_gradients() {
  gradients_.zero_();
  for (FlatEntry& entry : entries_) {
    if (!wide())
      entry.parameter.mutable_grad().reset();
    else if (!entry.parameter.grad().defined())
      entry.parameter.mutable_grad() = gradient_place(gradients_, entry);
  }
}

void FlatParameters::collect_gradient(const FlatEntry& entry) {
  at::NoGradGuard no_grad;
  at::Tensor& grad = const_cast<at::Tensor&>(entry.parameter).mutable_grad();
  at::Tensor place = gradient_place(gradients_, entry);
  if (!wide()) {
    if (grad.defined()) place.add_(grad);
    grad.reset();
    return;
  }
  if (grad.defined() && grad.const_data_ptr() == place.const_data_ptr()) return;
  // Somebody set the gradient to none since (an optimizer's zero_grad): autograd started a tensor of its own, or none.
  if (grad.defined())
    place.copy_(grad);
  else
    place.zero_();
  grad = place;
}

}  // namespace yoke
