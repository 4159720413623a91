#include "train/loop/optimizer_state.h"

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/rmsprop.h>
#include <torch/optim/sgd.h>

namespace yoke {
namespace {

namespace optim = torch::optim;

template <class Adam>
std::vector<StatePart> adam_parts(Adam& state) {
  return {{"step", nullptr, &state.step()},
          {"exp_avg", &state.exp_avg()},
          {"exp_avg_sq", &state.exp_avg_sq()},
          {"max_exp_avg_sq", &state.max_exp_avg_sq()}};
}

}  // namespace

std::vector<StatePart> parts_of(optim::OptimizerParamState& state) {
  if (auto* adam = dynamic_cast<optim::AdamParamState*>(&state)) return adam_parts(*adam);
  if (auto* adamw = dynamic_cast<optim::AdamWParamState*>(&state)) return adam_parts(*adamw);
  if (auto* sgd = dynamic_cast<optim::SGDParamState*>(&state)) return {{"momentum_buffer", &sgd->momentum_buffer()}};
  if (auto* rmsprop = dynamic_cast<optim::RMSpropParamState*>(&state))
    return {{"step", nullptr, &rmsprop->step()},
            {"square_avg", &rmsprop->square_avg()},
            {"momentum_buffer", &rmsprop->momentum_buffer()},
            {"grad_avg", &rmsprop->grad_avg()}};
  if (auto* adagrad = dynamic_cast<optim::AdagradParamState*>(&state))
    return {{"step", nullptr, &adagrad->step()}, {"sum", &adagrad->sum()}};
  return {};
}

std::unique_ptr<optim::OptimizerParamState> empty_state(const optim::Optimizer& optimizer) {
  if (dynamic_cast<const optim::Adam*>(&optimizer) != nullptr) return std::make_unique<optim::AdamParamState>();
  if (dynamic_cast<const optim::AdamW*>(&optimizer) != nullptr) return std::make_unique<optim::AdamWParamState>();
  if (dynamic_cast<const optim::SGD*>(&optimizer) != nullptr) return std::make_unique<optim::SGDParamState>();
  if (dynamic_cast<const optim::RMSprop*>(&optimizer) != nullptr) return std::make_unique<optim::RMSpropParamState>();
  if (dynamic_cast<const optim::Adagrad*>(&optimizer) != nullptr) return std::make_unique<optim::AdagradParamState>();
  return nullptr;
}

}  // namespace yoke
