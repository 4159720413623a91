#include "core/parallel/deal.h"

#include <algorithm>
#include <numeric>

namespace yoke {

std::vector<int> deal(const std::vector<std::int64_t>& sizes, int ranks) {
  std::vector<std::size_t> order(sizes.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return sizes[a] > sizes[b]; });
  std::vector<std::int64_t> load(static_cast<std::size_t>(ranks));
  std::vector<int> rank_of(sizes.size());
  for (std::size_t i : order) {
    auto least = std::min_element(load.begin(), load.end());
    rank_of[i] = static_cast<int>(least - load.begin());
    *least += sizes[i];
  }
  return rank_of;
}

}  // namespace yoke
