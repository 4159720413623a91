// What a report takes from run.json and plan.json.
#pragma once

#include "core/report/report.h"

namespace yoke {

// Fills name, model, layout, precision, steps_planned, spec and the predictions; what cannot be read becomes a problem.
void read_run_json(const std::string& text, Report& report);
void read_plan_json(const std::string& text, Report& report);

}  // namespace yoke
