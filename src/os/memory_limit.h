// How much memory the processes of a job may have.
#pragma once

#include <exception>
#include <optional>
#include <string>

#include "core/base/error.h"
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

// "out of memory: ulimit -d is 146 MiB", with the tightest limit in force; kind environment.
Error out_of_memory();

// When the exception says that the system refused memory or a thread: the error that explains it, and names the limits.
// Nothing for any other exception.
std::optional<Error> refusal(const std::exception& exception);

}  // namespace yoke
