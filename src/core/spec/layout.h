// How a run uses its ranks: what the planner chooses and the engine executes. The sizes' product is the number of
// ranks.
#pragma once

#include <cstdint>

#include "core/spec/run_spec.h"

namespace yoke {

struct Layout {
  std::int64_t data = 1, tensor = 1, pipeline = 1, context = 1, expert = 1;
  int zero = 0;
  std::int64_t shard_group = 1;  // ranks that hold the shards of one copy: 1 without ZeRO
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  std::int64_t micro_batch = 1;  // sequences per forward
  Recompute recompute = Recompute::none;
  Precision precision = Precision::fp32;

  std::int64_t ranks() const { return data * tensor * pipeline * context * expert; }
  bool operator==(const Layout&) const = default;
};

}  // namespace yoke
