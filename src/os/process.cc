#include "os/process.h"

#include <fcntl.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cstring>

#include "os/fd.h"
#include "os/signals.h"

namespace yoke {
namespace {

std::vector<char*> pointers(const std::vector<std::string>& texts) {
  std::vector<char*> result;
  for (const std::string& text : texts) result.push_back(const_cast<char*>(text.c_str()));
  result.push_back(nullptr);
  return result;
}

// In the child: everything up to exec. Returns only on failure, with errno set. No allocation: the parent may have
// threads.
void execute(const SpawnOptions& options, char* const* argv, char* const* envp, pid_t parent, int report_fd) {
  ::setsid();
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (::getppid() != parent) ::_exit(127);  // it died before prctl
  int input = options.stdin_fd;
  if (input < 0) input = ::open("/dev/null", O_RDONLY | O_CLOEXEC);
  // Out of the way of 0, 1 and 2 first, so that no dup2 below overwrites one that is still needed.
  int fds[3] = {input, options.stdout_fd, options.stderr_fd};
  for (int i = 0; i < 3; ++i) {
    if (fds[i] < 0) fds[i] = i;
    fds[i] = ::fcntl(fds[i], F_DUPFD_CLOEXEC, 4);
  }
  int report = ::fcntl(report_fd, F_DUPFD_CLOEXEC, 4);
  ::dup2(report, 3);
  ::fcntl(3, F_SETFD, FD_CLOEXEC);
  for (int i = 0; i < 3; ++i) {
    if (fds[i] >= 0) ::dup2(fds[i], i);
  }
  ::close_range(4, UINT_MAX, 0);
  if (!options.directory.empty() && ::chdir(options.directory.c_str()) != 0) return;
  ::sigprocmask(SIG_SETMASK, &options.signal_mask, nullptr);
  ::execvpe(argv[0], argv, envp);
}

}  // namespace

int shell_code(const ExitStatus& status) { return status.signal != 0 ? 128 + status.signal : status.code; }

std::string describe(const ExitStatus& status) {
  if (status.signal == 0) return fmt::format("exited with code {}", status.code);
  return fmt::format("was killed by {}{}", signal_name(status.signal), status.core_dumped ? " (core dumped)" : "");
}

ExitStatus exit_status(const siginfo_t& info) {
  if (info.si_code == CLD_EXITED) return {.code = info.si_status};
  return {.signal = info.si_status, .core_dumped = info.si_code == CLD_DUMPED};
}

Result<pid_t> spawn(const SpawnOptions& options) {
  YOKE_CHECK(!options.argv.empty(), "spawn: no program");
  std::vector<char*> argv = pointers(options.argv), envp = pointers(options.environment);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    return fail(ErrorKind::environment, fmt::format("cannot start {}: {}", options.argv[0], std::strerror(errno)));
  }
  Fd report(ends[0]), child_end(ends[1]);
  pid_t parent = ::getpid();
  pid_t pid = ::fork();
  if (pid == 0) {
    execute(options, argv.data(), envp.data(), parent, child_end.get());
    int problem = errno;
    if (::write(3, &problem, sizeof problem) < 0) ::_exit(126);
    ::_exit(127);
  }
  if (pid < 0) {
    return fail(ErrorKind::environment, fmt::format("cannot start {}: {}", options.argv[0], std::strerror(errno)),
                "the limit on processes may be reached (ulimit -u)");
  }
  child_end.reset();
  int problem = 0;
  ssize_t got;
  do got = ::read(report.get(), &problem, sizeof problem);
  while (got < 0 && errno == EINTR);
  if (got == sizeof problem) {  // end of file otherwise: exec closed the pipe
    ::waitpid(pid, nullptr, 0);
    std::string where = options.directory.empty() ? "" : fmt::format(" in {}", options.directory);
    return fail(ErrorKind::environment,
                fmt::format("cannot start {}{}: {}", options.argv[0], where, std::strerror(problem)),
                problem == EACCES ? "is it executable (chmod +x)?" : "check its path and PATH");
  }
  return pid;
}

}  // namespace yoke
