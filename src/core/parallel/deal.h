// Which rank takes which of many things of different sizes, so that each has about as much: who writes which tensor of
// a checkpoint.
#pragma once

#include <cstdint>
#include <vector>

namespace yoke {

// For each size the rank: the largest first, always to the rank with the least so far. The same on every rank.
std::vector<int> deal(const std::vector<std::int64_t>& sizes, int ranks);

}  // namespace yoke
