#include "core/report/points.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>

namespace yoke {
namespace {

TEST(Downsample, LeavesFewPointsAlone) {
  std::vector<Point> points{{1, 5}, {2, 4}, {3, std::nan("")}, {4, 2}};
  EXPECT_EQ(downsample(points, 4).size(), 4u);
  EXPECT_TRUE(downsample({}, 4).empty());
}

TEST(Downsample, KeepsTheLowestAndTheHighestOfEachBin) {
  // First and last stay; the two bins between them are 5 1 9 and 2 2 2.
  std::vector<Point> points{{0, 7}, {1, 5}, {2, 9}, {3, 1}, {4, 2}, {5, 2}, {6, 2}, {7, 7}};
  EXPECT_EQ(downsample(points, 6), (std::vector<Point>{{0, 7}, {2, 9}, {3, 1}, {4, 2}, {7, 7}}));
}

TEST(Downsample, ABinWithoutFiniteValuesStaysAGap) {
  std::vector<Point> points;
  for (int i = 0; i < 1000; ++i) points.push_back({i * 1.0, i >= 400 && i < 600 ? std::nan("") : 1.0});
  std::vector<Point> few = downsample(points, 50);
  EXPECT_TRUE(std::any_of(few.begin(), few.end(), [](Point p) { return std::isnan(p.y); }));
}

TEST(Downsample, IsSmallOrderedFromThePointsAndKeepsExtremes) {
  ASSERT_TRUE(rc::check([] {
    auto values = *rc::gen::nonEmpty(rc::gen::container<std::vector<int>>(rc::gen::inRange(-1000, 1000)));
    auto limit = *rc::gen::inRange<std::size_t>(4, 40);
    std::vector<Point> points;
    for (int repeat = 0; repeat < 5; ++repeat) {
      for (int v : values) points.push_back({static_cast<double>(points.size()), static_cast<double>(v)});
    }
    std::vector<Point> few = downsample(points, limit);
    RC_ASSERT(few.size() <= limit);
    RC_ASSERT(few.front() == points.front());
    RC_ASSERT(few.back() == points.back());
    for (std::size_t i = 0; i < few.size(); ++i) {
      if (i > 0) RC_ASSERT(few[i - 1].x < few[i].x);
      RC_ASSERT(few[i] == points.at(static_cast<std::size_t>(few[i].x)));
    }
    auto lower = [](Point a, Point b) { return a.y < b.y; };
    RC_ASSERT(std::max_element(few.begin(), few.end(), lower)->y ==
              std::max_element(points.begin(), points.end(), lower)->y);
    RC_ASSERT(std::min_element(few.begin(), few.end(), lower)->y ==
              std::min_element(points.begin(), points.end(), lower)->y);
  }));
}

}  // namespace
}  // namespace yoke
