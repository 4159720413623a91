#include "train/loop/epoch_sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

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

// What the ranks take of an epoch, that counts.
template <class Sampler>
std::vector<std::int64_t> counted_of(const Sampler& sampler, std::int64_t epoch) {
  std::vector<std::int64_t> all;
  for (std::int64_t b = 0; b < sampler.batches(); ++b) {
    std::vector<std::int64_t> part = sampler.batch(epoch, b);
    all.insert(all.end(), part.begin(), part.begin() + sampler.counted(b));
  }
  return all;
}

TEST(EpochSampler, DropGivesEveryRankAsMany) {
  for (std::int64_t examples : {2, 7, 64, 101})
    for (std::int64_t batch : {1, 3, 10, 64}) {
      std::set<std::int64_t> seen;
      std::int64_t dropped = 0, total = 0;
      for (int rank = 0; rank < 3; ++rank) {
        EpochSampler sampler(examples, batch, 5, rank, 3, Uneven::drop);
        for (std::int64_t b = 0; b < sampler.batches(); ++b) {
          EXPECT_GT(sampler.counted(b), 0);
          EXPECT_EQ(sampler.counted(b) * 3, sampler.batch_examples(b));
          EXPECT_EQ(static_cast<std::int64_t>(sampler.batch(2, b).size()), sampler.counted(b));
        }
        auto mine = counted_of(sampler, 2);
        total += static_cast<std::int64_t>(mine.size());
        seen.insert(mine.begin(), mine.end());
      }
      EXPECT_EQ(static_cast<std::int64_t>(seen.size()), total) << "none twice";
      for (std::int64_t first = 0; first < examples; first += batch) dropped += std::min(batch, examples - first) % 3;
      EXPECT_EQ(total + dropped, examples) << examples << " in batches of " << batch;
    }
}

TEST(EpochSampler, PadGivesEveryRankAsLongABatch) {
  for (std::int64_t examples : {1, 2, 7, 64, 101})
    for (std::int64_t batch : {1, 3, 10, 64}) {
      std::vector<std::int64_t> all, wanted(static_cast<std::size_t>(examples));
      std::iota(wanted.begin(), wanted.end(), 0);
      for (int rank = 0; rank < 3; ++rank) {
        EpochSampler sampler(examples, batch, 5, rank, 3, Uneven::pad);
        for (std::int64_t b = 0; b < sampler.batches(); ++b)
          EXPECT_EQ(static_cast<std::int64_t>(sampler.batch(2, b).size()), (sampler.batch_examples(b) + 2) / 3);
        auto mine = counted_of(sampler, 2);
        all.insert(all.end(), mine.begin(), mine.end());
      }
      std::sort(all.begin(), all.end());
      EXPECT_EQ(all, wanted) << examples << " in batches of " << batch;
    }
}

TEST(LocalSampler, RanksWithTheirOwnExamples) {
  for (Uneven uneven : {Uneven::drop, Uneven::pad, Uneven::join})
    for (const std::vector<std::int64_t>& counts :
         std::vector<std::vector<std::int64_t>>{{5, 3, 0}, {5, 3, 1}, {4, 4, 4}, {0, 9, 2, 2}})
      for (std::int64_t batch : {1, 2, 4, 100}) {
        bool none = *std::min_element(counts.begin(), counts.end()) == 0;
        std::vector<std::int64_t> sums(100), lengths(100, -1);
        for (std::size_t rank = 0; rank < counts.size(); ++rank) {
          auto sampler = LocalSampler::make(counts, batch, 5, static_cast<int>(rank), uneven);
          if (uneven == Uneven::pad && none) {
            ASSERT_FALSE(sampler);
            EXPECT_EQ(sampler.error().kind, ErrorKind::usage);
            continue;
          }
          ASSERT_TRUE(sampler);
          auto mine = counted_of(*sampler, 1);
          std::set<std::int64_t> distinct(mine.begin(), mine.end());
          EXPECT_EQ(distinct.size(), mine.size());
          std::int64_t wanted = uneven == Uneven::drop ? *std::min_element(counts.begin(), counts.end()) : counts[rank];
          EXPECT_EQ(static_cast<std::int64_t>(mine.size()), wanted);
          for (std::int64_t example : mine) EXPECT_LT(example, counts[rank]);
          for (std::int64_t b = 0; b < sampler->batches(); ++b) {
            auto length = static_cast<std::int64_t>(sampler->batch(1, b).size());
            sums[static_cast<std::size_t>(b)] += sampler->counted(b);
            if (uneven != Uneven::join) {
              EXPECT_TRUE(lengths[static_cast<std::size_t>(b)] == -1 || lengths[static_cast<std::size_t>(b)] == length);
            }
            lengths[static_cast<std::size_t>(b)] = length;
            if (rank + 1 == counts.size()) {
              EXPECT_EQ(sampler->batch_examples(b), sums[static_cast<std::size_t>(b)]);
            }
          }
        }
      }
}

}  // namespace
}  // namespace yoke
