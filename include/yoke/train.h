// Yoke's training library: what C++ libtorch lacks to train one's own torch::nn::Module on many ranks.
//
//   #include <torch/torch.h>
//   #include <yoke/train.h>
//
//   Job                 who this rank is, and the other ranks
//   DataParallelModule  any module, its gradients reduced over the ranks while backward runs
//   Autocast            mixed precision
//   EpochSampler        which examples this rank takes of those that all see
//   LocalSampler        which of its own
//   save_module, load_module
//
// All is in namespace yoke. Nothing prints, exits or throws; errors come as Result<T>: if (!result) look at
// result.error().what, .hint and .kind. Each class's contract stands in its header.
//
// Only <yoke/*.h> and the names above are stable; the folder internal/ beside this file is not to be included from
// outside.
#pragma once

#include "core/base/result.h"
#include "train/loop/autocast.h"
#include "train/loop/data_parallel_module.h"
#include "train/loop/epoch_sampler.h"
#include "train/loop/job.h"
#include "train/loop/module_checkpoint.h"
