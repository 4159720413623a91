#include "os/sweep.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <csignal>

#include "os/clock.h"
#include "os/fd.h"

namespace yoke {
namespace {

bool is_of_job(pid_t pid, const std::string& job_id, const std::string& root) {
  auto mark = process_variable(pid, job_variable, root);
  return mark && belongs_to_job(*mark, job_id);
}

}  // namespace

std::string new_job_id(const std::string& outer) {
  std::string id = fmt::format("{:x}-{:x}", unix_ns(), ::getpid());
  return outer.empty() ? id : outer + "." + id;
}

bool belongs_to_job(std::string_view mark, std::string_view job_id) {
  return mark.starts_with(job_id) && (mark.size() == job_id.size() || mark[job_id.size()] == '.');
}

std::vector<pid_t> processes_of_job(const std::string& job_id, const std::string& root) {
  std::vector<pid_t> result;
  for (pid_t pid : process_ids(root)) {
    if (pid != ::getpid() && is_of_job(pid, job_id, root)) result.push_back(pid);
  }
  return result;
}

std::vector<ProcessInfo> kill_job(const std::string& job_id, double limit_seconds) {
  std::int64_t deadline = monotonic_ns() + static_cast<std::int64_t>(limit_seconds * 1e9);
  while (true) {
    std::vector<pid_t> found = processes_of_job(job_id);
    if (found.empty()) return {};
    bool late = monotonic_ns() > deadline;
    std::vector<ProcessInfo> left;
    for (pid_t pid : found) {
      // By number, because glibc 2.36 declares the functions for C only. The pidfd holds on to the process: if the look
      // after it still shows the mark, the number has not been reused.
      Fd process(static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)));
      if (!process || !is_of_job(pid, job_id, "/proc")) continue;
      ::syscall(SYS_pidfd_send_signal, process.get(), SIGKILL, nullptr, 0);
      pollfd ended{process.get(), POLLIN, 0};
      ::poll(&ended, 1, late ? 0 : 20);
      auto info = process_info(pid);
      if (late && info) left.push_back(*info);
    }
    if (late) return left;
  }
}

}  // namespace yoke
