// The processes of this machine, from /proc (or a folder that looks like it, for tests). Processes that vanish while
// one reads are left out; so are those that this user may not look at.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace yoke {

struct ProcessInfo {
  pid_t pid = 0;
  pid_t parent = 0;
  char state = '?';  // R running, S sleeping, D waiting for a device, Z dead but not yet reaped, ...
  std::string name = {};
};

std::vector<pid_t> process_ids(const std::string& root = "/proc");
std::optional<ProcessInfo> process_info(pid_t pid, const std::string& root = "/proc");
std::vector<ProcessInfo> children_of(pid_t parent, const std::string& root = "/proc");

// A variable of the environment that the process started with.
std::optional<std::string> process_variable(pid_t pid, std::string_view name, const std::string& root = "/proc");

}  // namespace yoke
