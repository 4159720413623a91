// What is offloaded to a file is in memory page by page. The engine works in these pages and the planner counts them.
#pragma once

#include <cstdint>

namespace yoke {

// One being read, one in use, one being written.
inline constexpr std::int64_t offload_pages_in_memory = 3;
// Of the optimizer's state. Of parameters a page is a unit's shard, of activations a layer's input.
inline constexpr std::int64_t offload_page_elements = 1 << 18;

}  // namespace yoke
