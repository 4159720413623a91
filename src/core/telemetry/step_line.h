// The line that a person reads while training goes on, in torchtitan's manner:
//
//   step: 100/200  loss: 2.3456  grad_norm: 0.98  lr: 3.0e-04  memory: 1.23 GiB  tps: 12,345  mfu: 41.2%
//
// Steps are counted from 1 here, so that the last one reads 200/200. What is not known is left out; a total of 0 too.
#pragma once

#include <cstdint>
#include <string>

#include "core/telemetry/record.h"

namespace yoke {

std::string step_line(const StepEvent& step, std::int64_t total_steps);

}  // namespace yoke
