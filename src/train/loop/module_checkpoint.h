// Checkpoints of a module and its optimizer, in Yoke's format: complete or invisible, verified by checksums when read.
//
// Rank 0 writes, since data-parallel copies are equal; every rank calls, and returns when it is done. Weights are
// safetensors under the module's own names, so Python reads them too. Any number of ranks may go on from a checkpoint.
//
//   YOKE_TRY(auto resumed, load_module(*job, "checkpoints", net, &adam));
//   std::int64_t epoch = std::max(resumed.step, 0L);
//   ...
//   YOKE_TRY_VOID(save_module(*job, "checkpoints", epoch + 1, net, &adam));
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "train/loop/job.h"

namespace yoke {

// Writes root/step-N with all parameters and buffers, the optimizer's state (null: none), and `user_json`, a JSON
// object. Keeps the newest `keep`. Where it fails on rank 0 every rank gets an error (disk full, no right to write),
// and nothing is left behind.
Result<void> save_module(Job& job, const std::string& root, std::int64_t step, const torch::nn::Module& module,
                         const torch::optim::Optimizer* optimizer, const std::string& user_json = "{}",
                         std::int64_t keep = 3);

struct ResumedModule {
  std::int64_t step = -1;  // -1: there was no checkpoint, and nothing is loaded
  std::string user_json = "{}";
  std::vector<std::string> notes;  // damaged checkpoints that were passed over; rank 0 has them
};

// From the newest whole checkpoint below root, which every rank must see. The module must have the same
// names and shapes, and the optimizer be of the same kind. After an error the module may be loaded in part.
Result<ResumedModule> load_module(Job& job, const std::string& root, torch::nn::Module& module,
                                  torch::optim::Optimizer* optimizer);

}  // namespace yoke
