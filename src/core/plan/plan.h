// The layout that a run uses, with what it is predicted to need: what plan.json holds.
#pragma once

#include <cstdint>
#include <string>

#include "core/base/result.h"
#include "core/parallel/choose_layout.h"
#include "core/plan/predict.h"
#include "core/spec/layout.h"
#include "core/spec/run_spec.h"

namespace yoke {

struct Plan {
  Layout layout;
  MemoryPrediction memory;  // of one rank
  std::int64_t parameters = 0;
  double flops_per_token = 0;  // training_flops_per_token()
};

// The spec's model must be resolved.
Result<Plan> make_plan(const RunSpec& spec, std::int64_t ranks);

// plan.json: {"schema": 1, "layout": {...}, "memory_bytes": {part: bytes, "total": bytes}, "parameters",
// "flops_per_token", "rejected": []}; total is MemoryPrediction::total(). Nothing is rejected while the layout follows
// from the ranks.
std::string plan_to_json(const Plan& plan);

}  // namespace yoke
