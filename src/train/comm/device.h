// Which device a rank computes on.
#pragma once

#include <c10/core/Device.h>

#include <string>

#include "core/base/result.h"
#include "core/spec/run_spec.h"
#include "train/comm/c10d.h"

namespace yoke {

struct ChosenDevice {
  c10::Device device = c10::Device(c10::kCPU);
  Transport transport = Transport::cpu;
  std::string note;  // why it is the CPU although something else could be expected; may be empty
};

// cluster.device = "cuda": that rank's GPU, or an error (kind environment) that says what is missing; "auto": a GPU if
// this build and this machine have one, else the CPU with a note. Makes the GPU current for this process.
Result<ChosenDevice> choose_device(DeviceKind kind, int local_rank);

}  // namespace yoke
