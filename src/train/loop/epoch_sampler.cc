#include "train/loop/epoch_sampler.h"

#include <algorithm>

#include "train/data/sampler.h"

namespace yoke {
namespace {

std::int64_t divide_up(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

// Place `place` of the epoch.
std::int64_t example_at(std::uint64_t seed, std::int64_t epoch, std::int64_t examples, std::int64_t place) {
  // An odd factor spreads the epoch over all bits, so that neighbouring seeds do not share their epochs.
  const std::uint64_t key = seed ^ (static_cast<std::uint64_t>(epoch) + 1) * 0x9e3779b97f4a7c15;
  return static_cast<std::int64_t>(
      shuffled_index(key, static_cast<std::uint64_t>(examples), static_cast<std::uint64_t>(place)));
}

}  // namespace

EpochSampler::EpochSampler(std::int64_t examples, std::int64_t global_batch, std::uint64_t seed, int rank, int size,
                           Uneven uneven)
    : examples_(examples), global_batch_(global_batch), seed_(seed), rank_(rank), size_(size), uneven_(uneven) {
  YOKE_CHECK(examples > 0 && global_batch > 0, "{} examples in batches of {}", examples, global_batch);
  YOKE_CHECK(rank >= 0 && rank < size, "rank {} of {}", rank, size);
}

std::int64_t EpochSampler::batches() const {
  if (uneven_ != Uneven::drop) return divide_up(examples_, global_batch_);
  // A batch that is shorter than the ranks are many has nothing left.
  return (global_batch_ >= size_ ? examples_ / global_batch_ : 0) + (examples_ % global_batch_ >= size_ ? 1 : 0);
}

std::int64_t EpochSampler::batch_examples(std::int64_t batch) const {
  YOKE_CHECK(batch >= 0 && batch < batches(), "batch {} of {}", batch, batches());
  const std::int64_t count = std::min(global_batch_, examples_ - batch * global_batch_);
  return uneven_ == Uneven::drop ? count - count % size_ : count;
}

std::int64_t EpochSampler::counted(std::int64_t batch) const {
  const std::int64_t count = batch_examples(batch);
  return count * (rank_ + 1) / size_ - count * rank_ / size_;
}

std::vector<std::int64_t> EpochSampler::batch(std::int64_t epoch, std::int64_t batch) const {
  const std::int64_t count = batch_examples(batch), first = count * rank_ / size_;
  const std::int64_t length = uneven_ == Uneven::pad ? divide_up(count, size_) : counted(batch);
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < length; ++i)
    indices.push_back(example_at(seed_, epoch, examples_, batch * global_batch_ + (first + i) % count));
  return indices;
}

Result<LocalSampler> LocalSampler::make(std::vector<std::int64_t> counts, std::int64_t batch, std::uint64_t seed,
                                        int rank, Uneven uneven) {
  YOKE_CHECK(rank >= 0 && rank < static_cast<int>(counts.size()) && batch > 0, "rank {} of {}, batches of {}", rank,
             counts.size(), batch);
  for (std::size_t r = 0; r < counts.size() && uneven == Uneven::pad; ++r)
    if (counts[r] == 0)
      return fail(ErrorKind::usage, fmt::format("rank {} has no example that it could repeat as padding", r),
                  "choose Uneven::join, or give every rank an example");
  return LocalSampler(std::move(counts), batch, seed, rank, uneven);
}

LocalSampler::LocalSampler(std::vector<std::int64_t> counts, std::int64_t batch, std::uint64_t seed, int rank,
                           Uneven uneven)
    : counts_(std::move(counts)),
      batch_(batch),
      seed_(seed),
      rank_(static_cast<std::size_t>(rank)),
      uneven_(uneven),
      longest_(uneven == Uneven::drop ? *std::min_element(counts_.begin(), counts_.end())
                                      : *std::max_element(counts_.begin(), counts_.end())) {}

std::int64_t LocalSampler::batches() const { return divide_up(longest_, batch_); }

std::int64_t LocalSampler::share(std::int64_t have, std::int64_t batch) const {
  YOKE_CHECK(batch >= 0 && batch < batches(), "batch {} of {}", batch, batches());
  return std::clamp<std::int64_t>(std::min(have, longest_) - batch * batch_, 0, batch_);
}

std::int64_t LocalSampler::batch_examples(std::int64_t batch) const {
  std::int64_t sum = 0;
  for (std::int64_t have : counts_) sum += share(have, batch);
  return sum;
}

std::int64_t LocalSampler::counted(std::int64_t batch) const { return share(counts_[rank_], batch); }

std::vector<std::int64_t> LocalSampler::batch(std::int64_t epoch, std::int64_t batch) const {
  const std::int64_t length = uneven_ == Uneven::pad ? share(longest_, batch) : counted(batch);
  std::vector<std::int64_t> indices;
  for (std::int64_t i = 0; i < length; ++i)
    indices.push_back(example_at(seed_, epoch, counts_[rank_], (batch * batch_ + i) % counts_[rank_]));
  return indices;
}

}  // namespace yoke
