#include "train/data/sampler.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <vector>

namespace yoke {
namespace {

std::vector<std::uint64_t> order(std::uint64_t key, std::uint64_t count) {
  std::vector<std::uint64_t> places(count);
  for (std::uint64_t n = 0; n < count; ++n) places[n] = shuffled_index(key, count, n);
  return places;
}

bool is_permutation(const std::vector<std::uint64_t>& places) {
  std::vector<bool> seen(places.size());
  for (const std::uint64_t place : places) {
    if (place >= places.size() || seen[place]) return false;
    seen[place] = true;
  }
  return true;
}

Sampling sampling_of(std::uint64_t sequences, std::int64_t global_batch, std::uint64_t seed = 1) {
  return {.seed = seed,
          .order = DataOrder::shuffled,
          .sequence = 4,
          .global_batch = global_batch,
          .tokens = sequences * 4 + 1};
}

TEST(Sampler, EveryCountIsShuffledOneToOne) {
  for (const std::uint64_t count : {1, 2, 3, 4, 5, 7, 8, 9, 1000, 1023, 1024, 1025, 1000000})
    for (const std::uint64_t key : {0, 1, 2}) EXPECT_TRUE(is_permutation(order(key, count))) << count;
  ASSERT_TRUE(rc::check("any count and key", [](std::uint64_t key) {
    RC_ASSERT(is_permutation(order(key, *rc::gen::inRange<std::uint64_t>(1, 5000))));
  }));
}

// A change of these changes what resumed runs train on. The numbers were checked with a second program in Python.
TEST(Sampler, TheOrderIsForEver) {
  EXPECT_EQ(order(1, 10), (std::vector<std::uint64_t>{2, 9, 3, 7, 4, 8, 1, 5, 6, 0}));
  const Sampling sampling = sampling_of(1000, 4, 7);
  EXPECT_EQ(sequence_index(sampling, 0, 0), 442U);
  EXPECT_EQ(sequence_index(sampling, 12345, 3), 511U);
}

TEST(Sampler, ANumberOfSequencesNeedsATokenMoreThanTheyHold) {
  Sampling sampling = sampling_of(10, 1);
  EXPECT_EQ(sequence_count(sampling), 10U);
  --sampling.tokens;
  EXPECT_EQ(sequence_count(sampling), 9U);
  sampling.tokens = 5;
  EXPECT_EQ(sequence_count(sampling), 1U);
  sampling.tokens = 4;
  EXPECT_DEATH(sequence_count(sampling), "4 tokens hold no sequence of 4");
}

TEST(Sampler, SequentialOrderGoesRound) {
  Sampling sampling = sampling_of(10, 4);
  sampling.order = DataOrder::sequential;
  std::vector<std::uint64_t> taken;
  for (int step = 0; step < 3; ++step)
    for (int row = 0; row < 4; ++row) taken.push_back(sequence_index(sampling, step, row));
  EXPECT_EQ(taken, (std::vector<std::uint64_t>{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1}));
}

// Also when a step begins in one epoch and ends in the next.
TEST(Sampler, AnEpochTakesEverySequenceOnce) {
  ASSERT_TRUE(rc::check("epochs", [](std::uint64_t seed) {
    const auto count = *rc::gen::inRange<std::uint64_t>(1, 300);
    const auto batch = *rc::gen::inRange<std::int64_t>(1, 50);
    const Sampling sampling = sampling_of(count, batch, seed);
    std::vector<std::uint64_t> taken;
    for (std::int64_t step = 0; taken.size() < 3 * count; ++step)
      for (std::int64_t row = 0; row < batch; ++row) taken.push_back(sequence_index(sampling, step, row));
    for (int epoch = 0; epoch < 3; ++epoch) {
      const auto first = taken.begin() + static_cast<std::ptrdiff_t>(epoch * count);
      RC_ASSERT(is_permutation({first, first + static_cast<std::ptrdiff_t>(count)}));
    }
  }));
}

TEST(Sampler, EpochsAndSeedsDiffer) {
  constexpr std::int64_t count = 1000;
  const auto epoch = [](std::uint64_t seed, std::int64_t number) {
    std::vector<std::uint64_t> taken;
    for (std::int64_t row = 0; row < count; ++row)
      taken.push_back(sequence_index(sampling_of(count, count, seed), number, row));
    return taken;
  };
  const auto same = [](const auto& a, const auto& b) {
    int places = 0;
    for (std::size_t i = 0; i < a.size(); ++i) places += a[i] == b[i];
    return places;
  };
  // Two random orders agree in one place on average, in more than ten once in ten million.
  EXPECT_LE(same(epoch(1, 0), epoch(1, 1)), 10);
  EXPECT_LE(same(epoch(1, 0), epoch(2, 0)), 10);
  EXPECT_LE(same(epoch(1, 1), epoch(2, 0)), 10);
  EXPECT_LE(same(epoch(0, 0), epoch(1, 0)), 10);
  EXPECT_EQ(epoch(5, 3), epoch(5, 3));
}

TEST(Sampler, TheOrderLooksRandom) {
  for (const std::uint64_t count : {1000U, 4096U, 100000U}) {
    double ascending = 0, moved = 0, near = 0;
    std::vector<int> sixteenths(16);  // where the first tenth goes
    const auto places = order(12345, count);
    for (std::uint64_t n = 0; n + 1 < count; ++n) {
      const double step = static_cast<double>(places[n + 1]) - static_cast<double>(places[n]);
      ascending += step > 0;
      near += std::abs(step) <= 2;
      moved += std::abs(static_cast<double>(places[n]) - static_cast<double>(n));
      if (n < count / 10) ++sixteenths[places[n] * 16 / count];
    }
    const double n = static_cast<double>(count);
    EXPECT_NEAR(ascending / n, 0.5, 3 / std::sqrt(n));
    EXPECT_NEAR(moved / n / n, 1.0 / 3, 2 / std::sqrt(n));
    EXPECT_LT(near, 20);  // 4 on average
    double chi_squared = 0;
    for (const int hits : sixteenths) chi_squared += std::pow(hits - n / 160, 2) / (n / 160);
    EXPECT_LT(chi_squared, 45);  // 15 degrees of freedom: more once in ten thousand
  }
}

TEST(Sampler, SmallCountsReachEveryOrder) {
  std::vector<std::vector<std::uint64_t>> orders;
  for (std::uint64_t key = 0; key < 1000; ++key) orders.push_back(order(key * 0x9e3779b97f4a7c15, 4));
  std::sort(orders.begin(), orders.end());
  EXPECT_EQ(std::unique(orders.begin(), orders.end()) - orders.begin(), 24);
}

TEST(Sampler, RanksShareTheRows) {
  const Sampling sampling = sampling_of(100, 12);
  for (const std::int64_t ranks : {1, 2, 3, 4, 6, 12}) {
    std::int64_t next = 0;
    for (std::int64_t rank = 0; rank < ranks; ++rank) {
      const RowRange range = rank_rows(sampling, rank, ranks);
      EXPECT_EQ(range.first, next);
      next += range.rows;
    }
    EXPECT_EQ(next, 12);
  }
  EXPECT_DEATH(rank_rows(sampling, 0, 5), "rank 0 of 5 for 12 rows");
}

}  // namespace
}  // namespace yoke
