// Data parallelism around any torch::nn::Module: each rank runs its share of the batch through its own copy, and the
// gradients are all-reduced bucket by bucket while backward still runs.
//
//   Net net;
//   YOKE_TRY(auto parallel, DataParallelModule::wrap(*job, net, {}));
//   torch::optim::Adam adam(net.parameters(), 1e-3);          // any torch::optim optimizer, made before or after
//   adam.zero_grad();
//   loss_of(first_micro_batch).backward();                     // accumulates on this rank: nothing is sent
//   YOKE_TRY_VOID(parallel->backward(loss_of(last_micro_batch)));  // and this reduces what has been accumulated
//   adam.step();                                               // on equal gradients: the copies stay equal
//
// The module keeps its type and is called as before. Dense fp32 or fp64 parameters of one type; their storage becomes
// one flat buffer, so do not move or convert the module afterwards. Parameters without a gradient count as zero. Used
// from one thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <memory>

#include "core/base/result.h"
#include "train/loop/job.h"

namespace yoke {

struct DataParallelOptions {
  // average: right when each rank's loss is the mean over a share of equal size. sum: when each rank divides by the
  // examples of the global batch, which stays exact with shares of any size.
  enum class Gradients { average, sum } gradients = Gradients::average;
  double bucket_bytes = 25.0 * (1 << 20);
};

class DataParallelModule {
 public:
  // Gives every rank rank 0's parameters and buffers. Job and module must outlive the result. Errors: kind usage when
  // the ranks' modules differ, or a parameter has another type or device than the rest; otherwise the collectives'
  // (job.h).
  static Result<std::unique_ptr<DataParallelModule>> wrap(Job& job, torch::nn::Module& module,
                                                          const DataParallelOptions& options);
  ~DataParallelModule();

  // The step's last backward: afterwards each .grad holds the average (sum) over the ranks. After an error the ranks
  // are no longer in step, and the program should end.
  Result<void> backward(const at::Tensor& loss);

  // Parameters and buffers from rank 0 once more: for buffers that each rank has changed (running statistics of batch
  // norm), before validation say.
  Result<void> broadcast();

 private:
  struct Parts;
  explicit DataParallelModule(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace yoke
