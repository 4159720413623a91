// Data parallelism: every rank computes the gradients of its share of the batch, and they are summed over the ranks
// bucket by bucket while backward still runs.
//
// Buckets are contiguous ranges of the flat gradients, cut from the last parameter to the first, since backward comes
// to them in about that order. A bucket is reduced when all its gradients are there and all buckets before it have been
// started, so that every rank starts them in the same order. The first bucket is small, so that communication starts
// early.
//
//   DataParallel parallel(flat, communicator, {});
//   parallel.synchronize_next_backward();   // in the last micro-batch only
//   loss.backward();
//   auto exposed = parallel.finish();       // flat.gradients() now hold the sums; the time that had to be waited
//
// Used from the thread that calls backward.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/result.h"
#include "core/base/units.h"
#include "train/comm/communicator.h"
#include "train/parallel/flat_parameters.h"

namespace yoke {

struct BucketOptions {
  double bucket_bytes = 25.0 * (1 << 20);
  double first_bucket_bytes = 1.0 * (1 << 20);
};

struct Bucket {
  std::int64_t first = 0, numel = 0;  // of the flat gradients
  int entries = 0;
};

// Buckets in the order in which backward fills them; bucket_of[i] is that of entry i.
struct BucketPlan {
  std::vector<Bucket> buckets;
  std::vector<int> bucket_of;
};
BucketPlan plan_buckets(const std::vector<FlatEntry>& entries, std::int64_t bytes_per_element,
                        const BucketOptions& options);

class DataParallel {
 public:
  // Both must outlive it. With more than one rank, parameters are broadcast from rank 0 by broadcast_parameters().
  DataParallel(FlatParameters& flat, Communicator& communicator, const BucketOptions& options);
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  Result<void> broadcast_parameters();

  // The coming backward is the last of this step: its gradients are complete when they arrive.
  void synchronize_next_backward();
  // After that backward: waits until every bucket is reduced (parameters that got no gradient count as zero). Returns
  // the seconds waited.
  Result<Seconds> finish();

  const BucketPlan& plan() const;

 private:
  struct Hooks;  // lives as long as autograd may call it
  std::shared_ptr<Hooks> hooks_;
};

}  // namespace yoke
