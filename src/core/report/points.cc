#include "core/report/points.h"

#include <algorithm>
#include <cmath>

namespace yoke {

std::vector<Point> downsample(std::span<const Point> points, std::size_t limit) {
  if (points.size() <= limit) return {points.begin(), points.end()};
  std::span<const Point> inner = points.subspan(1, points.size() - 2);
  std::size_t bins = (limit - 2) / 2;
  std::vector<Point> kept{points.front()};
  for (std::size_t bin = 0; bin < bins; ++bin) {
    std::size_t begin = inner.size() * bin / bins, end = inner.size() * (bin + 1) / bins;
    const Point* low = nullptr;
    const Point* high = nullptr;
    for (const Point& p : inner.subspan(begin, end - begin)) {
      if (!std::isfinite(p.y)) continue;
      if (low == nullptr || p.y < low->y) low = &p;
      if (high == nullptr || p.y > high->y) high = &p;
    }
    if (low == nullptr) {
      kept.push_back(inner[begin]);
    } else {
      kept.push_back(*std::min(low, high));
      if (low != high) kept.push_back(*std::max(low, high));
    }
  }
  kept.push_back(points.back());
  return kept;
}

}  // namespace yoke
