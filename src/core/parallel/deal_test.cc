#include "core/parallel/deal.h"

#include <gtest/gtest.h>

namespace yoke {
namespace {

TEST(Deal, LargestFirstToTheRankWithTheLeast) {
  EXPECT_EQ(deal({1, 5, 3, 3}, 2), (std::vector<int>{0, 0, 1, 1}));
  EXPECT_EQ(deal({2, 2}, 4), (std::vector<int>{0, 1}));
  EXPECT_EQ(deal({7, 7, 7}, 1), (std::vector<int>{0, 0, 0}));
  EXPECT_TRUE(deal({}, 3).empty());
}

}  // namespace
}  // namespace yoke
