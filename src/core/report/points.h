// Points of a curve, and fewer of them that look the same.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace yoke {

struct Point {
  double x = 0, y = 0;
  bool operator==(const Point&) const = default;
};

// At most `limit` (4 or more) of the points, which are in order of x: the first, the last, and of each bin between them
// the lowest and the highest, so that every spike stays. A bin without a finite y keeps one point, so that a gap stays
// a gap.
std::vector<Point> downsample(std::span<const Point> points, std::size_t limit);

}  // namespace yoke
