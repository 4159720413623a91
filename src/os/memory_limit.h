// How much memory the processes of a job may have.
#pragma once

#include <optional>
#include <string>

#include "core/base/units.h"

namespace yoke {

struct MemoryLimit {
  Bytes bytes;
  std::string what;  // "the cgroup's memory.max", "this machine's memory", "ulimit -v"
};

// Of all processes together: the tightest of this process's cgroups (version 2), or the machine's memory. Nothing when
// /proc cannot be read. `root` is the folder that holds proc and sys, for tests.
std::optional<MemoryLimit> shared_memory_limit(const std::string& root = "");

// Of each process by itself (ulimit -v, ulimit -d); nothing without one.
std::optional<MemoryLimit> process_memory_limit();

}  // namespace yoke
