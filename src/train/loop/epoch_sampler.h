// Which examples a rank takes: each epoch is a shuffled sequence of all of them, which depends on the seed and the
// epoch alone, and no example is taken twice in it.
//
//   EpochSampler sampler(examples, 64, seed, job->rank(), job->size());   // all ranks see all examples
//   for (std::int64_t b = 0; b < sampler.batches(); ++b)
//     for (std::int64_t example : sampler.batch(epoch, b)) ...
//
//   YOKE_TRY(auto counts, job->gather("examples", mine));                 // each rank has files of its own
//   YOKE_TRY(auto sampler, LocalSampler::make(counts, 16, seed, job->rank()));
//
// Where the ranks' shares differ, Uneven says what happens. Pure functions in constant memory; any thread.
#pragma once

#include <cstdint>
#include <vector>

#include "core/base/result.h"

namespace yoke {

enum class Uneven {
  drop,  // ranks leave out what they have more than others: all take as many
  pad,   // ranks that have fewer repeat some, which are not to count: behind the first counted() ones of batch()
  join,  // ranks take fewer, or none: see DataParallelModule::join()
};

// All ranks choose from the same examples: each epoch is cut into global batches, and each of those into one part for
// each rank, so that any number of ranks trains on the same batches.
class EpochSampler {
 public:
  // `global_batch` is of all ranks together. All at least 1, rank from 0 to size - 1.
  EpochSampler(std::int64_t examples, std::int64_t global_batch, std::uint64_t seed, int rank, int size,
               Uneven uneven = Uneven::join);

  std::int64_t batches() const;                           // in an epoch; the last one may be shorter
  std::int64_t batch_examples(std::int64_t batch) const;  // of all ranks together, that count
  std::int64_t counted(std::int64_t batch) const;         // of this rank's part
  // This rank's part. The parts that count are, in the order of the ranks, the global batch. With join their sizes
  // differ by at most one, so a short batch may leave a rank with none. drop leaves out what does not divide by the
  // ranks, of each batch: best a global batch that does.
  std::vector<std::int64_t> batch(std::int64_t epoch, std::int64_t batch) const;

 private:
  std::int64_t examples_, global_batch_;
  std::uint64_t seed_;
  int rank_, size_;
  Uneven uneven_;
};

// Each rank has examples of its own, numbered from 0, and other ranks may have more or fewer.
class LocalSampler {
 public:
  // counts: of each rank's examples. batch: examples of one rank. Kind usage with pad when a rank has none to repeat.
  static Result<LocalSampler> make(std::vector<std::int64_t> counts, std::int64_t batch, std::uint64_t seed, int rank,
                                   Uneven uneven = Uneven::join);

  std::int64_t batches() const;                           // in an epoch, the same on every rank
  std::int64_t batch_examples(std::int64_t batch) const;  // of all ranks together, that count
  std::int64_t counted(std::int64_t batch) const;         // of this rank's
  std::vector<std::int64_t> batch(std::int64_t epoch, std::int64_t batch) const;

 private:
  LocalSampler(std::vector<std::int64_t> counts, std::int64_t batch, std::uint64_t seed, int rank, Uneven uneven);
  std::int64_t share(std::int64_t have, std::int64_t batch) const;  // of one who has so many

  std::vector<std::int64_t> counts_;
  std::int64_t batch_;
  std::uint64_t seed_;
  std::size_t rank_;
  Uneven uneven_;
  std::int64_t longest_;  // a rank takes so many in an epoch, padding included
};

}  // namespace yoke
