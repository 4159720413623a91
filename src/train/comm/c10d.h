// Collectives between processes: through memory that they share (shared_memory.h) for CPU tensors on one host, else
// through libtorch's process groups: Gloo for CPU tensors, NCCL for CUDA tensors.
//
// All that libtorch changes between versions (names of the flat collectives, constructors) stays inside c10d.cc.
#pragma once

#include <memory>

#include "core/base/units.h"
#include "train/comm/communicator.h"
#include "train/comm/world.h"

namespace yoke {

enum class Transport { cpu, gloo, nccl };  // cpu: shared memory where all ranks can share it, else Gloo

// Meets the other ranks of the world at master_addr:master_port and connects to them; returns when all are there.
// Errors: kind timeout when some do not come (they are named where the store knows), kind environment when the
// transport does not exist here (nccl in a build without CUDA, or without a GPU).
Result<std::unique_ptr<Communicator>> connect(const World& world, const std::string& group, Transport transport,
                                              Seconds timeout);

}  // namespace yoke
