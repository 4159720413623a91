// Batches of token sequences, made ahead of time by a background thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "train/data/sampler.h"
#include "train/data/tokens.h"

namespace yoke {

inline constexpr std::int64_t ignored_target = -100;  // what PyTorch's cross entropy ignores by default

struct Batch {
  std::int64_t rows = 0, sequence = 0;
  std::vector<std::int64_t> inputs, targets;  // row-major, rows x sequence; a target of ignored_target is not counted
  std::int64_t valid = 0;                     // targets that count
};

// Rows [first_row, first_row + rows) of the global batch of a step; sampling.tokens is tokens.size().
Batch make_batch(const Tokens& tokens, const Sampling& sampling, std::int64_t step, std::int64_t first_row,
                 std::int64_t rows);

struct PrefetchSpec {
  std::int64_t rank = 0, ranks = 1;            // ranks that divide the global batch among them
  std::int64_t first_step = 0, last_step = 0;  // steps [first_step, last_step)
  std::size_t depth = 2;                       // batches made ahead; at least 1
};

// The batches of one rank, a step after the other. One thread uses it; the destructor stops the background thread at
// once, whatever is still queued.
class BatchPrefetcher {
 public:
  BatchPrefetcher(Tokens tokens, const Sampling& sampling, const PrefetchSpec& spec);
  ~BatchPrefetcher();
  BatchPrefetcher(BatchPrefetcher&&) = delete;

  // All rows of this rank for the next step; waits until they are there. Not to be called after the last step.
  Batch next();
  // Gives a batch back, so that its memory is used again: then the steady state allocates nothing.
  void recycle(Batch batch);
  // Seconds that next() had to wait since this was last asked.
  double take_waited_seconds();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace yoke
