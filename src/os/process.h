// Starting a program as a child, and how it ended.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <string>
#include <vector>

#include "core/base/result.h"

namespace yoke {

struct ExitStatus {
  int code = 0;    // of exit(); meaningless if a signal ended it
  int signal = 0;  // 0: it exited by itself
  bool core_dumped = false;

  bool ok() const { return code == 0 && signal == 0; }
  bool operator==(const ExitStatus&) const = default;
};

// What a shell would return: the code, or 128 + the signal.
int shell_code(const ExitStatus& status);
// "exited with code 3", "was killed by SIGSEGV (core dumped)".
std::string describe(const ExitStatus& status);
// From the siginfo_t of waitid().
ExitStatus exit_status(const siginfo_t& info);

struct SpawnOptions {
  std::vector<std::string> argv;         // argv[0] is looked up in PATH
  std::vector<std::string> environment;  // "NAME=value", the whole of it
  std::string directory = {};            // empty: this process's
  int stdin_fd = -1;                     // -1: /dev/null
  int stdout_fd = -1;                    // -1: this process's; so for stderr
  int stderr_fd = -1;
  sigset_t signal_mask{};  // the child's; empty unless set
};

// Starts the program in a session of its own, with no open files but the three, with default handling of signals that
// the caller handles. The kernel kills it (SIGKILL) when the calling thread ends, so call from a thread that lives as
// long as the child shall. Returns once the program runs; if it cannot be executed, an Error (environment) names it and
// nothing is left.
Result<pid_t> spawn(const SpawnOptions& options);

}  // namespace yoke
