// Data parallelism: every rank computes the gradients of its share of the batch, and they are summed over the ranks
// unit by unit while backward still runs. Without ZeRO a unit is all-reduced; with it, reduce-scattered over the shard
// group and, between copies, its shard all-reduced.
//
// A unit is reduced when all its gradients are there and all units after it have been started, so that every rank
// starts them in the same order.
//
//   DataParallel parallel(flat);
//   flat.zero_gradients();
//   for each micro-batch:
//     parallel.begin_backward(last);
//     loss.backward();
//     auto exposed = parallel.finish_backward();   // the time that had to be waited
//   // flat.gradient_shard() now hold the sums
//
// In stages 0 and 1 micro-batches before the last only accumulate on this rank; from stage 2 on each is reduced, since
// nobody keeps whole gradients. Used from the thread that calls backward.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "core/base/result.h"
#include "core/base/units.h"
#include "train/parallel/flat_parameters.h"

namespace yoke {

class DataParallel {
 public:
  // flat must outlive it.
  explicit DataParallel(FlatParameters& flat);
  ~DataParallel();
  DataParallel(const DataParallel&) = delete;
  DataParallel& operator=(const DataParallel&) = delete;

  // The coming backward is one of this step, or its last.
  void begin_backward(bool last);
  // After it: waits until every unit that it completed is reduced (parameters that got no gradient count as zero).
  // Returns the seconds waited.
  Result<Seconds> finish_backward();

  // A backward that other ranks only follow: `before` is called ahead of each reduction that backward itself starts,
  // and one is done before the next begins. Null: no such backward. Who follows takes part in a reduction by its
  // number, between begin_backward() and finish_backward(), with a gradient of zero.
  void announce(std::function<Result<void>(int unit)> before);
  Result<void> take_part(int unit);

 private:
  struct Hooks;  // lives as long as autograd may call it
  std::shared_ptr<Hooks> hooks_;
};

}  // namespace yoke
