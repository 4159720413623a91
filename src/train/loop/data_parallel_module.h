// Data parallelism and ZeRO around any torch::nn::Module: each rank runs its share of the batch through its own copy,
// and the gradients are summed over the ranks while backward still runs.
//
//   Net net;
//   YOKE_TRY(auto parallel, DataParallelModule::wrap(*job, net, {.zero = 3}));
//   torch::optim::Adam adam(parallel->parameters(), 1e-3);     // any elementwise torch::optim optimizer
//   for each step:
//     for each micro-batch:
//       YOKE_TRY_VOID(parallel->backward(loss_of(micro_batch), last));
//     YOKE_TRY(double norm, parallel->clip_gradients(1.0));    // if wanted
//     YOKE_TRY_VOID(parallel->step(adam));                     // updates, hands the new parameters round, zeroes
//     gradients
//
// The module keeps its type and is called as before. With zero = 1, 2 or 3 each rank keeps one d-th of the optimizer's
// state, of the gradients, of the parameters; parameters() are then flat shards, on which the optimizer works, and
// parameters of the module have no gradients of their own. In stage 3 a parameter has values only while operations of
// libtorch use it (gather_on_use.h), on the thread that called wrap(); code that reads data_ptr() itself calls
// gather_parameters() first. Checkpoints: module_checkpoint.h.
//
// Dense fp32 or fp64 parameters of one type on the CPU; their storage becomes flat buffers, so do not move or convert
// the module afterwards. Parameters without a gradient count as zero. Without ZeRO an optimizer of the module's own
// parameters, with its own zero_grad() and step(), works as well. Used from one thread.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "core/base/result.h"
#include "train/loop/job.h"

namespace yoke {

class FlatParameters;
class LossScaler;

struct DataParallelOptions {
  // average: right when each rank's loss is the mean over a share of equal size. sum: when each rank divides by the
  // examples of the global batch, which stays exact with shares of any size. example_mean: each rank's loss is the sum
  // over its examples, and the gradients are divided by the number that join() has counted on all ranks.
  enum class Gradients { average, sum, example_mean } gradients = Gradients::average;
  double bucket_bytes = 25.0 * (1 << 20);
  int zero = 0;                               // ZeRO stage
  std::int64_t shard_group = 0;               // ranks that share one copy; 0: all
  double least_unit_bytes = 1.0 * (1 << 20);  // stage 3: smaller submodules are gathered together
  // fp16 (autocast.h): every backward() works on the loss times this scale, and the gradients are divided by it. step()
  // skips the update on all ranks, and halves the scale, when gradients have overflowed; after 2000 steps without it
  // doubles. 0: none. All backwards go through backward(), and all updates through step().
  double loss_scale = 0;
};

class DataParallelModule {
 public:
  // Gives every rank rank 0's parameters and buffers. Job and module must outlive the result. Errors: kind usage when
  // the ranks' modules differ, or a parameter has another type or device than the rest; otherwise the collectives'
  // (job.h).
  static Result<std::unique_ptr<DataParallelModule>> wrap(Job& job, torch::nn::Module& module,
                                                          const DataParallelOptions& options);
  ~DataParallelModule();

  // What the optimizer is to update.
  std::vector<at::Tensor> parameters() const;

  // Where ranks may run out of examples before others (Uneven::join): ahead of each forward pass every rank says how
  // many its loss will count, and learns how many all ranks have; 0: all have run out. A rank that said 0 skips the
  // forward pass and calls backward({}, last), which takes part in all that the others do, with a gradient of zero. In
  // such a pass of stage 3 nothing is gathered ahead. Not with Gradients::average.
  Result<std::int64_t> join(std::int64_t examples);

  // One backward of the step. After the last one the gradients of parameters() hold the average (sum) over the ranks.
  // After an error the ranks are no longer in step, and the program should end.
  Result<void> backward(const at::Tensor& loss, bool last = true);

  // The norm of the whole gradient, as it was before it was scaled down to at most max_norm. Not finite where step() is
  // going to skip.
  Result<double> clip_gradients(double max_norm);

  // optimizer.step(), and all that has to follow it.
  Result<void> step(torch::optim::Optimizer& optimizer);
  std::int64_t skipped_steps() const;  // since wrap(), for overflow
  double loss_scale() const;           // now; 1 without

  // Stage 3: all parameters have values until release_parameters() or step(). Every rank calls it. Nothing otherwise.
  Result<void> gather_parameters();
  void release_parameters();

  // Buffers, and without ZeRO parameters, from rank 0 once more: for buffers that each rank has changed (running
  // statistics of batch norm), before validation say.
  Result<void> broadcast();

  // Internal, for checkpoints and tests: where parameters and gradients lie; the loss scale's state, null without; and
  // what has to follow when shards of the parameters have changed in stage 3.
  torch::nn::Module& module() const;
  const FlatParameters& flat() const;
  LossScaler* loss_scaler() const;
  Result<void> forget_gathered();

 private:
  struct Parts;
  explicit DataParallelModule(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace yoke
