// Collectives between processes: for CPU tensors through memory that they share on one host (shared_memory.h), and
// through Gloo between hosts (hosts.h); for CUDA tensors through NCCL. Gloo and NCCL are libtorch's process groups.
//
// All that libtorch changes between versions (names of the flat collectives, constructors) stays inside c10d.cc.
#pragma once

#include <memory>

#include "core/base/units.h"
#include "train/comm/communicator.h"
#include "train/comm/world.h"

namespace yoke {

// cpu: shared memory on a host and Gloo between hosts; Gloo alone where ranks of a host cannot share memory.
enum class Transport { cpu, gloo, nccl };

// Meets the other ranks of the world at master_addr:master_port and connects to them; returns when all are there.
// Errors: kind timeout when some do not come (they are named where the store knows), kind environment when the
// transport does not exist here (nccl in a build without CUDA, or without a GPU). From then on the process ignores
// SIGPIPE, unless it handles it.
Result<std::unique_ptr<Communicator>> connect(const World& world, const std::string& group, Transport transport,
                                              Seconds timeout);

}  // namespace yoke
