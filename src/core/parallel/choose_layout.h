// How a run of a spec is laid out over its ranks. The planner costs this layout and the engine executes it.
#pragma once

#include <cstdint>

#include "core/base/result.h"
#include "core/spec/layout.h"
#include "core/spec/run_spec.h"

namespace yoke {

// With micro_batch = "auto": the largest divisor of a replica's share of the global batch up to this. Larger ones gain
// little speed, but cost memory.
inline constexpr std::int64_t largest_automatic_micro_batch = 8;

// With layout = "auto" all ranks go to data. Kind usage: the sizes given do not make `ranks`, or the replicas cannot
// share the global batch equally. ranks >= 1.
Result<Layout> choose_layout(const RunSpec& spec, std::int64_t ranks);

}  // namespace yoke
