// The output head is computed for some rows (tokens) at a time, so that the logits of a whole micro-batch never exist
// at once. The engine works in these pieces and the planner counts their memory.
#pragma once

#include <algorithm>
#include <cstdint>

namespace yoke {

// As many rows as make about 2^23 logits; at least one.
constexpr std::int64_t head_rows_at_once(std::int64_t vocab) {
  return std::max<std::int64_t>(1, (std::int64_t{1} << 23) / vocab);
}

}  // namespace yoke
