#include "os/warden.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstring>
#include <filesystem>

#include "os/clock.h"
#include "os/sweep.h"

namespace yoke {
namespace {

constexpr double kill_limit_seconds = 10;  // for SIGKILL to take effect

// What passes through the socket (SOCK_SEQPACKET keeps the messages apart), from the warden:
struct Report {
  enum Kind { started, not_started, ended, survivor, finished } kind;
  ProcessEnd end = {};
  ErrorKind error_kind = {};
  char what[1024] = {}, hint[256] = {};  // of not_started; `what` is the name of a survivor
};
// and to it:
struct Order {
  int index;  // -1: all
  int number;
};

void copy(char* to, std::size_t size, const std::string& text) { to[text.copy(to, size - 1)] = '\0'; }

class Warden {
 public:
  Warden(Fd socket, std::string job_id) : socket_(std::move(socket)), job_id_(std::move(job_id)) {}

  void run(const std::vector<SpawnOptions>& programs, const std::string& scratch) {
    prepare();
    if (start(programs)) watch();
    kill_descendants();
    for (const ProcessInfo& left : kill_job(job_id_, kill_limit_seconds)) survived(left);
    if (!send({.kind = Report::finished}) && !scratch.empty()) remove_scratch(scratch);
  }

 private:
  // Also that of jobs inside this one, whose wardens have just been killed: "outer.inner" beside "outer".
  static void remove_scratch(const std::filesystem::path& scratch) {
    std::error_code ignored;
    std::vector<std::filesystem::path> all{scratch};
    for (const auto& entry : std::filesystem::directory_iterator(scratch.parent_path(), ignored))
      if (entry.path().filename().string().starts_with(scratch.filename().string() + ".")) all.push_back(entry.path());
    for (const auto& path : all) std::filesystem::remove_all(path, ignored);
  }

  void prepare() {
    socket_ = above_stdio(std::move(socket_));
    ::setsid();  // Ctrl-C is for the owner, who decides
    ::prctl(PR_SET_NAME, "yoke-warden");
    ::prctl(PR_SET_CHILD_SUBREAPER, 1);
    std::signal(SIGCHLD, SIG_DFL);  // if it was ignored, no status would ever be known
    sigset_t all, child;
    sigfillset(&all);
    ::sigprocmask(SIG_BLOCK, &all, nullptr);
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    children_ = above_stdio(Fd(::signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK)));
  }

  bool start(const std::vector<SpawnOptions>& programs) {
    for (std::size_t i = 0; i < programs.size(); ++i) {
      Result<pid_t> pid = spawn(programs[i]);
      if (!pid) {
        Report report{.kind = Report::not_started, .error_kind = pid.error().kind};
        copy(report.what, sizeof report.what, pid.error().what);
        copy(report.hint, sizeof report.hint, pid.error().hint);
        send(report);
        return false;
      }
      pids_.push_back(*pid);
      if (!send({.kind = Report::started, .end = {.index = static_cast<int>(i), .pid = *pid}})) return false;
    }
    leave_files();
    return true;
  }

  // Nothing of the owner's stays open here: whoever reads its output must see the end of it when the owner ends.
  void leave_files() {
    auto [low, high] = std::minmax({static_cast<unsigned>(socket_.get()), static_cast<unsigned>(children_.get())});
    if (low > 3) ::close_range(3, low - 1, 0);
    if (high > low + 1) ::close_range(low + 1, high - 1, 0);
    ::close_range(high + 1, UINT_MAX, 0);
    Fd null = above_stdio(Fd(::open("/dev/null", O_RDWR | O_CLOEXEC)));
    for (int i = 0; i < 3; ++i) ::dup2(null.get(), i);
  }

  static Fd above_stdio(Fd fd) { return Fd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 3)); }

  void watch() {
    while (std::any_of(pids_.begin(), pids_.end(), [](pid_t pid) { return pid != 0; })) {
      pollfd sources[2] = {{socket_.get(), POLLIN, 0}, {children_.get(), POLLIN, 0}};
      ::poll(sources, 2, -1);
      if (sources[1].revents != 0 && !reap()) return;
      if (sources[0].revents != 0) {
        Order order{};
        if (::recv(socket_.get(), &order, sizeof order, MSG_DONTWAIT) != sizeof order) return;  // the owner is gone
        obey(order);
      }
    }
  }

  void obey(const Order& order) {
    for (std::size_t i = 0; i < pids_.size(); ++i) {
      if (pids_[i] == 0 || (order.index >= 0 && order.index != static_cast<int>(i))) continue;
      ::kill(order.number == SIGKILL ? -pids_[i] : pids_[i], order.number);
    }
  }

  // Collects the dead, programs and adopted orphans alike. False if the owner is gone.
  bool reap() {
    signalfd_siginfo ignored;
    while (::read(children_.get(), &ignored, sizeof ignored) > 0) {
    }
    bool heard = true;
    while (true) {
      siginfo_t info{};
      if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG) != 0 || info.si_pid == 0) return heard;
      auto found = std::find(pids_.begin(), pids_.end(), info.si_pid);
      if (found == pids_.end()) continue;
      *found = 0;
      heard = send({.kind = Report::ended,
                    .end = {.index = static_cast<int>(found - pids_.begin()),
                            .pid = info.si_pid,
                            .status = exit_status(info),
                            .time_ns = unix_ns()}}) &&
              heard;
    }
  }

  // Whoever is killed leaves its children to this process, so killing children until there are none kills the whole
  // tree.
  void kill_descendants() {
    std::int64_t deadline = monotonic_ns() + static_cast<std::int64_t>(kill_limit_seconds * 1e9);
    while (true) {
      reap();
      siginfo_t info{};
      if (::waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 && errno == ECHILD) return;
      std::vector<ProcessInfo> children = children_of(::getpid());
      for (const ProcessInfo& child : children) ::kill(child.pid, SIGKILL);
      if (monotonic_ns() > deadline) {
        for (const ProcessInfo& child : children) survived(child);
        return;
      }
      pollfd source{children_.get(), POLLIN, 0};
      ::poll(&source, 1, 20);
    }
  }

  void survived(const ProcessInfo& process) {
    Report report{.kind = Report::survivor, .end = {.pid = process.pid}};
    copy(report.what, sizeof report.what, process.name);
    send(report);
  }

  bool send(const Report& report) {
    return ::send(socket_.get(), &report, sizeof report, MSG_NOSIGNAL) == sizeof report;
  }

  Fd socket_, children_;
  std::string job_id_;
  std::vector<pid_t> pids_;  // 0: ended
};

// The next report; waits for one if `wait`. Nothing at the end of the socket or, without waiting, when there is none
// yet.
std::optional<Report> receive(int socket, bool wait, bool& at_end) {
  Report report{};
  while (true) {
    ssize_t got = ::recv(socket, &report, sizeof report, wait ? 0 : MSG_DONTWAIT);
    if (got == sizeof report) return report;
    // ECONNRESET: the warden ended without having read the last order. What it had to say still comes.
    if (got < 0 && (errno == EINTR || errno == ECONNRESET)) continue;
    at_end = got >= 0 || (errno != EAGAIN && errno != EWOULDBLOCK);
    return std::nullopt;
  }
}

}  // namespace

Result<ProcessSet> ProcessSet::start(const std::vector<SpawnOptions>& programs, const std::string& job_id,
                                     const std::string& scratch) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return fail(ErrorKind::environment, fmt::format("socketpair: {}", std::strerror(errno)));
  }
  Fd own(ends[0]), other(ends[1]);
  pid_t pid = ::fork();
  if (pid == 0) {
    own.reset();
    Warden(std::move(other), job_id).run(programs, scratch);
    ::_exit(0);
  }
  if (pid < 0) return fail(ErrorKind::environment, fmt::format("fork: {}", std::strerror(errno)));
  other.reset();
  ProcessSet set(std::move(own), pid, job_id);
  while (set.pids_.size() < programs.size()) {
    bool at_end = false;
    std::optional<Report> report = receive(set.socket_.get(), true, at_end);
    if (!report) return fail(ErrorKind::failed, "the warden process was killed while the ranks were being started");
    if (report->kind == Report::not_started) return fail(report->error_kind, report->what, report->hint);
    // A program may end before the last one has started. Its report must not overtake: the warden sends it after all
    // starts.
    set.pids_.push_back(report->end.pid);
  }
  return set;
}

ProcessSet::~ProcessSet() {
  if (socket_) end();
}

void ProcessSet::end() {
  socket_.reset();
  while (::waitpid(warden_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

void ProcessSet::signal(int index, int number) {
  Order order{index, number};
  ::send(socket_.get(), &order, sizeof order, MSG_NOSIGNAL);
}

std::optional<ProcessEnd> ProcessSet::next_end() {
  while (!finished_) {
    bool at_end = false;
    std::optional<Report> report = receive(socket_.get(), false, at_end);
    if (report && report->kind == Report::ended) return report->end;
    if (report && report->kind == Report::survivor) {
      survivors_.push_back({.pid = report->end.pid, .name = report->what});
      continue;
    }
    if (!report && !at_end) return std::nullopt;
    finished_ = true;
    lost_ = !report;
    end();
    if (lost_) survivors_ = kill_job(job_id_, kill_limit_seconds);
  }
  return std::nullopt;
}

}  // namespace yoke
