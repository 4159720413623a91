#include "core/plan/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace yoke {
namespace {

constexpr int schema = 1;

std::int64_t bytes(Bytes b) { return static_cast<std::int64_t>(b.value); }

}  // namespace

Result<Plan> make_plan(const RunSpec& spec, std::int64_t ranks) {
  const Model& model = spec.model.shape;
  Plan plan;
  YOKE_TRY(plan.layout, choose_layout(spec, ranks));
  YOKE_TRY(plan.memory, predict_memory(spec, plan.layout));
  plan.parameters = parameter_count(model);
  plan.flops_per_token = training_flops_per_token(model, spec.data.sequence);
  return plan;
}

std::string plan_to_json(const Plan& plan) {
  const Layout& l = plan.layout;
  const MemoryPrediction& m = plan.memory;
  nlohmann::ordered_json root;
  root["schema"] = schema;
  root["layout"] = {{"data", l.data},
                    {"tensor", l.tensor},
                    {"pipeline", l.pipeline},
                    {"context", l.context},
                    {"expert", l.expert},
                    {"zero", l.zero},
                    {"shard_group", l.shard_group},
                    {"schedule", name(l.schedule)},
                    {"micro_batch", l.micro_batch},
                    {"recompute", name(l.recompute)},
                    {"precision", name(l.precision)}};
  root["memory_bytes"] = {{"parameters", bytes(m.parameters)},
                          {"gradients", bytes(m.gradients)},
                          {"optimizer", bytes(m.optimizer)},
                          {"activations", bytes(m.activations)},
                          {"communication", bytes(m.communication)},
                          {"checkpoint", bytes(m.checkpoint)},
                          {"total", bytes(m.total())}};
  root["parameters"] = plan.parameters;
  root["flops_per_token"] = plan.flops_per_token;
  root["rejected"] = nlohmann::ordered_json::array();
  return root.dump(2) + "\n";
}

}  // namespace yoke
