#include "train/loop/epoch_sampler.h"

#include <algorithm>

#include "core/base/result.h"
#include "train/data/sampler.h"

namespace yoke {

EpochSampler::EpochSampler(std::int64_t examples, std::int64_t global_batch, std::uint64_t seed, int rank, int size)
    : examples_(examples), global_batch_(global_batch), seed_(seed), rank_(rank), size_(size) {
  YOKE_CHECK(examples > 0 && global_batch > 0, "{} examples in batches of {}", examples, global_batch);
  YOKE_CHECK(rank >= 0 && rank < size, "rank {} of {}", rank, size);
}

std::int64_t EpochSampler::batches() const { return (examples_ + global_batch_ - 1) / global_batch_; }

std::int64_t EpochSampler::batch_examples(std::int64_t batch) const {
  YOKE_CHECK(batch >= 0 && batch < batches(), "batch {} of {}", batch, batches());
  return std::min(global_batch_, examples_ - batch * global_batch_);
}

std::vector<std::int64_t> EpochSampler::batch(std::int64_t epoch, std::int64_t batch) const {
  const std::int64_t count = batch_examples(batch);
  const std::int64_t first = count * rank_ / size_, last = count * (rank_ + 1) / size_;
  // An odd factor spreads the epoch over all bits, so that neighbouring seeds do not share their epochs.
  const std::uint64_t key = seed_ ^ (static_cast<std::uint64_t>(epoch) + 1) * 0x9e3779b97f4a7c15;
  std::vector<std::int64_t> indices;
  for (std::int64_t i = first; i < last; ++i) {
    auto place = static_cast<std::uint64_t>(batch * global_batch_ + i);
    indices.push_back(static_cast<std::int64_t>(shuffled_index(key, static_cast<std::uint64_t>(examples_), place)));
  }
  return indices;
}

}  // namespace yoke
