// Which sequence a row of a step trains on: pure functions of the seed, so that any rank, and any later run with any
// number of ranks, finds the same data in the same order.
//
// Sequence k is the tokens [k * sequence, (k + 1) * sequence], the last one only as a target. Step s takes the rows
// 0 ... global_batch - 1; rank r of d takes the r-th of d equal slices of them, and its micro-batch m the m-th slice of
// those. An epoch ends when every sequence has been taken once, also in the middle of a step.
#pragma once

#include <cstdint>

#include "core/spec/run_spec.h"

namespace yoke {

struct Sampling {
  std::uint64_t seed = 0;
  DataOrder order = DataOrder::shuffled;
  std::int64_t sequence = 0;      // tokens
  std::int64_t global_batch = 0;  // sequences a step
  std::uint64_t tokens = 0;       // in the data set; at least sequence + 1
};

// How many sequences the data set holds.
std::uint64_t sequence_count(const Sampling& sampling);

// The sequence that row `row` (0 ... global_batch - 1) of step `step` (from 0) takes.
std::uint64_t sequence_index(const Sampling& sampling, std::int64_t step, std::int64_t row);

// Place n of the shuffled order of [0, count): a bijection for every key, in constant memory. Checkpoints rely on it: a
// change here changes the data that a resumed run sees.
std::uint64_t shuffled_index(std::uint64_t key, std::uint64_t count, std::uint64_t n);

struct RowRange {
  std::int64_t first = 0, rows = 0;
};
// Rank `rank` of `ranks`; global_batch is a multiple of ranks.
RowRange rank_rows(const Sampling& sampling, std::int64_t rank, std::int64_t ranks);

}  // namespace yoke
