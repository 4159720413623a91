// Which examples a rank takes: each epoch is one shuffled sequence of all of them, cut into global batches, and each of
// those into one part for each rank. The sequence depends on the seed and the epoch alone, so any number of ranks
// trains on the same batches.
//
//   EpochSampler sampler(examples, 64, seed, job->rank(), job->size());
//   for (std::int64_t b = 0; b < sampler.batches(); ++b)
//     for (std::int64_t example : sampler.batch(epoch, b)) ...
//
// Pure functions in constant memory; any thread.
#pragma once

#include <cstdint>
#include <vector>

namespace yoke {

class EpochSampler {
 public:
  // `global_batch` is of all ranks together. All at least 1, rank from 0 to size - 1.
  EpochSampler(std::int64_t examples, std::int64_t global_batch, std::uint64_t seed, int rank, int size);

  std::int64_t batches() const;                           // in an epoch; the last one may be shorter
  std::int64_t batch_examples(std::int64_t batch) const;  // of all ranks together
  // This rank's part. The parts of the ranks, in their order, are the global batch; their sizes differ by at most one,
  // so a short batch may leave a rank with none: its forward and backward must happen all the same.
  std::vector<std::int64_t> batch(std::int64_t epoch, std::int64_t batch) const;

 private:
  std::int64_t examples_, global_batch_;
  std::uint64_t seed_;
  int rank_, size_;
};

}  // namespace yoke
