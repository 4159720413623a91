#include "train/loop/epoch_sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>

namespace yoke {
namespace {

std::vector<std::int64_t> epoch_of(std::int64_t examples, std::int64_t batch, std::uint64_t seed, int ranks,
                                   std::int64_t epoch) {
  std::vector<std::int64_t> all;
  EpochSampler first(examples, batch, seed, 0, ranks);
  for (std::int64_t b = 0; b < first.batches(); ++b) {
    std::size_t before = all.size();
    for (int rank = 0; rank < ranks; ++rank) {
      auto part = EpochSampler(examples, batch, seed, rank, ranks).batch(epoch, b);
      std::int64_t least = first.batch_examples(b) / ranks;
      EXPECT_GE(static_cast<std::int64_t>(part.size()), least);
      EXPECT_LE(static_cast<std::int64_t>(part.size()), least + 1);
      all.insert(all.end(), part.begin(), part.end());
    }
    EXPECT_EQ(static_cast<std::int64_t>(all.size() - before), first.batch_examples(b));
  }
  return all;
}

TEST(EpochSampler, EveryEpochTakesEachExampleOnce) {
  for (std::int64_t examples : {1, 2, 7, 64, 101})
    for (std::int64_t batch : {1, 3, 64}) {
      std::vector<std::int64_t> wanted(static_cast<std::size_t>(examples));
      std::iota(wanted.begin(), wanted.end(), 0);
      auto got = epoch_of(examples, batch, 5, 3, 2);
      std::sort(got.begin(), got.end());
      EXPECT_EQ(got, wanted) << examples << " in batches of " << batch;
    }
}

TEST(EpochSampler, TheOrderIsTheSameOnAnyNumberOfRanks) {
  auto one = epoch_of(101, 16, 7, 1, 4);
  for (int ranks : {2, 3, 5, 20}) EXPECT_EQ(epoch_of(101, 16, 7, ranks, 4), one) << ranks;
}

TEST(EpochSampler, SeedAndEpochEachChangeTheOrder) {
  auto order = epoch_of(101, 16, 7, 2, 4);
  EXPECT_NE(epoch_of(101, 16, 7, 2, 5), order);
  EXPECT_NE(epoch_of(101, 16, 8, 2, 4), order);
  EXPECT_FALSE(std::is_sorted(order.begin(), order.end()));
}

}  // namespace
}  // namespace yoke
