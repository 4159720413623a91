#include "train/data/sampler.h"

#include <bit>

#include "core/base/result.h"

namespace yoke {
namespace {

// The finaliser of splitmix64: every bit of the input moves about half of the bits of the output.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

}  // namespace

std::uint64_t sequence_count(const Sampling& sampling) {
  YOKE_CHECK(sampling.sequence > 0 && sampling.tokens > static_cast<std::uint64_t>(sampling.sequence),
             "{} tokens hold no sequence of {}", sampling.tokens, sampling.sequence);
  return (sampling.tokens - 1) / static_cast<std::uint64_t>(sampling.sequence);
}

// A Feistel network over the bits of count - 1, halves as equal as can be; what falls outside of [0, count) is sent
// through again, which ends because a permutation comes back to where it started. The domain is less than twice the
// count, so two rounds through are enough on average.
std::uint64_t shuffled_index(std::uint64_t key, std::uint64_t count, std::uint64_t n) {
  YOKE_CHECK(n < count, "place {} of {}", n, count);
  constexpr int passes = 8;  // even: the halves are back in their places afterwards
  const int bits = std::bit_width(count - 1);
  const int low_bits = bits / 2, high_bits = bits - low_bits;
  const std::uint64_t low_mask = (std::uint64_t{1} << low_bits) - 1, high_mask = (std::uint64_t{1} << high_bits) - 1;
  do {
    std::uint64_t low = n & low_mask, high = n >> low_bits;
    for (int pass = 0; pass < passes; pass += 2) {
      low ^= mix(key ^ mix(high + (static_cast<std::uint64_t>(pass) << 56))) & low_mask;
      high ^= mix(key ^ mix(low + (static_cast<std::uint64_t>(pass + 1) << 56))) & high_mask;
    }
    n = high << low_bits | low;
  } while (n >= count);
  return n;
}

std::uint64_t sequence_index(const Sampling& sampling, std::int64_t step, std::int64_t row) {
  YOKE_CHECK(step >= 0 && row >= 0 && row < sampling.global_batch, "row {} of {} in step {}", row,
             sampling.global_batch, step);
  const std::uint64_t count = sequence_count(sampling);
  const std::uint64_t n = static_cast<std::uint64_t>(step) * static_cast<std::uint64_t>(sampling.global_batch) +
                          static_cast<std::uint64_t>(row);
  if (sampling.order == DataOrder::sequential) return n % count;
  return shuffled_index(mix(sampling.seed) ^ mix(~(n / count)), count, n % count);
}

RowRange rank_rows(const Sampling& sampling, std::int64_t rank, std::int64_t ranks) {
  YOKE_CHECK(rank >= 0 && rank < ranks && sampling.global_batch % ranks == 0, "rank {} of {} for {} rows", rank, ranks,
             sampling.global_batch);
  const std::int64_t rows = sampling.global_batch / ranks;
  return {rank * rows, rows};
}

}  // namespace yoke
