// Checkpoints of a module and its optimizer, in Yoke's format: complete or invisible, verified by checksums when read.
//
//   YOKE_TRY(auto resumed, load_module(*job, "checkpoints", net, &adam));
//   std::int64_t epoch = std::max(resumed.step, 0L);
//   ...
//   YOKE_TRY_VOID(save_module(*job, "checkpoints", epoch + 1, net, &adam));
//
// Or with a DataParallelModule in place of the module, once it is wrapped; in ZeRO stages 1 to 3 only so, since the
// optimizer's state (and the parameters) are cut over the ranks. Then every rank writes some tensors, and none holds
// all of them; otherwise rank 0 writes, since data-parallel copies are equal. Every rank calls, and returns when it is
// done.
//
// The files do not depend on the layout: weights lie under the module's own names, the optimizer's state under
// "NAME.exp_avg" and so on, whole, as safetensors that Python reads as well. What one layout wrote, any other goes on
// from: another number of ranks, another ZeRO stage, the module without DataParallelModule.
//
// Optimizers: Adam, AdamW, SGD, RMSprop, Adagrad and what derives from them, else kind usage. Where cut tensors are put
// together and their parameters have made different numbers of steps, the largest counts for all.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "train/loop/data_parallel_module.h"
#include "train/loop/job.h"

namespace yoke {

// Writes root/step-N with all parameters and buffers (rank 0's), the optimizer's state and options (null: none), and
// `user_json`, a JSON object. Keeps the newest `keep`. Where a rank fails (disk full, no right to write) every rank
// gets an error, and what is left behind is at most a hidden folder, which the next save removes.
Result<void> save_module(Job& job, const std::string& root, std::int64_t step, const torch::nn::Module& module,
                         const torch::optim::Optimizer* optimizer, const std::string& user_json = "{}",
                         std::int64_t keep = 3);
Result<void> save_module(Job& job, const std::string& root, std::int64_t step, DataParallelModule& module,
                         const torch::optim::Optimizer* optimizer, const std::string& user_json = "{}",
                         std::int64_t keep = 3);

struct ResumedModule {
  std::int64_t step = -1;  // -1: there was no checkpoint, and nothing is loaded
  std::string user_json = "{}";
  std::vector<std::string> notes;  // damaged checkpoints that were passed over; rank 0 has them
};

// From the newest whole checkpoint below root, which every rank must see. The module must have the same names and
// shapes, and the optimizer be of the same kind. After an error the module may be loaded in part.
Result<ResumedModule> load_module(Job& job, const std::string& root, torch::nn::Module& module,
                                  torch::optim::Optimizer* optimizer);
Result<ResumedModule> load_module(Job& job, const std::string& root, DataParallelModule& module,
                                  torch::optim::Optimizer* optimizer);

}  // namespace yoke
