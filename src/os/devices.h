// What this machine can run ranks on.
#pragma once

#include <string>

#include "os/environment.h"

namespace yoke {

// Processors that this process may use.
int usable_cores();

// NVIDIA GPUs that a program started with this environment would see: the device files, or what CUDA_VISIBLE_DEVICES
// leaves of them. `root` is the folder of device files.
int visible_gpus(const Environment& environment, const std::string& root = "/dev");

}  // namespace yoke
