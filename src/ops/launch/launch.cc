#include "ops/launch/launch.h"

#include <poll.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "ops/launch/error_file.h"
#include "ops/launch/rank_environment.h"
#include "os/clock.h"
#include "os/file.h"
#include "os/port.h"
#include "os/signals.h"
#include "os/sweep.h"

namespace yoke {
namespace {

constexpr std::int64_t tick_ns = 100'000'000;

// A folder that goes away with the object.
struct TemporaryFolder {
  TemporaryFolder() = default;
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder() {
    std::error_code ignored;
    if (!path.empty()) std::filesystem::remove_all(path, ignored);
  }
  std::string path;
};

class Launcher {
 public:
  Launcher(const LaunchOptions& options, LaunchObserver& observer, SignalQueue signals)
      : options_(options), observer_(observer), signals_(std::move(signals)) {}

  Result<LaunchOutcome> run() {
    YOKE_TRY_VOID(prepare());
    for (int attempt = 0;; ++attempt) {
      AttemptPolicy policy(options_.grace);
      cause_.reset();
      YOKE_TRY(std::vector<ProcessInfo> survivors, run_attempt(attempt, policy));
      while (auto late = signals_.read())
        policy.on_signal(late->number, monotonic_ns());  // came while the last ones ended
      int stop = policy.stop_signal();
      bool curable = cause_ && !std::ranges::count(options_.final_codes, shell_code(cause_->end.status));
      if (stop == 0 && curable && attempt < options_.max_restarts && observer_.worth_a_restart(*cause_, policy)) {
        observer_.on_restart(attempt + 1, *cause_);
        continue;
      }
      int code = stop != 0 ? 128 + stop : cause_ ? shell_code(cause_->end.status) : 0;
      return LaunchOutcome{code, cause_, policy.also_failed(), stop, attempt, std::move(survivors)};
    }
  }

 private:
  Result<void> prepare() {
    job_id_ = new_job_id(find_variable(options_.environment, job_variable).value_or(""));
    std::error_code problem;
    if (!options_.log_dir.empty()) {
      std::filesystem::create_directories(options_.log_dir, problem);
      if (problem) return fail(ErrorKind::environment, fmt::format("{}: {}", options_.log_dir, problem.message()));
      error_dir_ = std::filesystem::absolute(options_.log_dir).string();
    } else {
      temporary_.path = error_dir_ = (std::filesystem::temp_directory_path(problem) / ("yoke-" + job_id_)).string();
      std::filesystem::create_directories(error_dir_, problem);
      if (problem) return fail(ErrorKind::environment, fmt::format("{}: {}", error_dir_, problem.message()));
    }
    for (int rank = 0; rank < options_.ranks; ++rank) {
      std::string log = options_.log_dir.empty() ? "" : fmt::format("{}/rank-{:05}.log", options_.log_dir, rank);
      YOKE_TRY(RankOutput output, RankOutput::open(log));
      outputs_.push_back(std::move(output));
    }
    return {};
  }

  std::string error_file(int rank) const { return fmt::format("{}/rank-{:05}.error.json", error_dir_, rank); }

  // Returns the processes that could not be killed.
  Result<std::vector<ProcessInfo>> run_attempt(int attempt, AttemptPolicy& policy) {
    YOKE_TRY(ProcessSet ranks, start(attempt));
    std::int64_t next_tick = monotonic_ns() + tick_ns;
    while (!ranks.finished()) {
      std::int64_t wake = std::min(next_tick, policy.deadline().value_or(next_tick));
      wait(ranks, wake - monotonic_ns());
      while (auto received = signals_.read()) {
        observer_.on_signal(received->number);
        send(ranks, policy.on_signal(received->number, monotonic_ns()));
      }
      while (auto end = ranks.next_end()) {
        outputs_[static_cast<std::size_t>(end->index)].drain(sink(end->index));
        bool known = policy.cause().has_value();
        send(ranks, policy.on_end(*end, monotonic_ns()));
        if (!known && policy.cause()) failed(attempt, *end);
      }
      send(ranks, policy.on_time(monotonic_ns()));
      if (monotonic_ns() >= next_tick) {
        next_tick = monotonic_ns() + tick_ns;
        observer_.on_tick();
      }
    }
    for (int rank = 0; rank < options_.ranks; ++rank) outputs_[static_cast<std::size_t>(rank)].finish(sink(rank));
    report_log_problems();
    observer_.on_tick();
    if (ranks.lost()) {
      return fail(ErrorKind::failed,
                  "the process that looks after the ranks (yoke-warden) was killed; the ranks are stopped",
                  "the kernel's out-of-memory killer may have chosen it: see dmesg");
    }
    return ranks.survivors();
  }

  Result<ProcessSet> start(int attempt) {
    int port = options_.master_port;
    if (port == 0) {
      YOKE_TRY(port, free_tcp_port());
    }
    std::vector<SpawnOptions> programs;
    std::vector<RankOutput::Ends> ends;
    for (int rank = 0; rank < options_.ranks; ++rank) {
      RankPlace place{rank,          options_.ranks, options_.master_address, port,
                      options_.role, attempt,        options_.max_restarts};
      place.run_id = options_.run_id.empty() ? job_id_ : options_.run_id;
      place.error_file = error_file(rank);
      place.run_dir = options_.run_dir;
      place.job_id = job_id_;
      std::error_code ignored;
      std::filesystem::remove(place.error_file, ignored);
      YOKE_TRY(RankOutput::Ends pipes, outputs_[static_cast<std::size_t>(rank)].connect(attempt));
      programs.push_back({.argv = options_.command,
                          .environment = environment_lines(rank_environment(options_.environment, place)),
                          .stdout_fd = pipes.out.get(),
                          .stderr_fd = pipes.err.get(),
                          .signal_mask = signals_.original_mask()});
      ends.push_back(std::move(pipes));
    }
    YOKE_TRY(ProcessSet ranks, ProcessSet::start(programs, job_id_, temporary_.path));
    observer_.on_attempt({attempt, port, ranks.pids()});
    return ranks;
  }

  // Until something happens, or the time is over; passes output on.
  void wait(ProcessSet& ranks, std::int64_t ns) {
    std::vector<pollfd> sources{{ranks.fd(), POLLIN, 0}, {signals_.fd(), POLLIN, 0}};
    for (const RankOutput& output : outputs_) {
      sources.push_back({output.fd(Stream::out), POLLIN, 0});  // poll() passes over -1
      sources.push_back({output.fd(Stream::err), POLLIN, 0});
    }
    timespec limit{0, std::max<std::int64_t>(0, ns)};
    if (::ppoll(sources.data(), sources.size(), &limit, nullptr) <= 0) return;
    for (std::size_t i = 2; i < sources.size(); ++i) {
      if (sources[i].revents == 0) continue;
      std::size_t rank = (i - 2) / 2;
      outputs_[rank].read(i % 2 == 0 ? Stream::out : Stream::err, sink(static_cast<int>(rank)));
    }
    report_log_problems();
  }

  void report_log_problems() {
    for (RankOutput& output : outputs_) {
      if (std::string problem = output.take_log_problem(); !problem.empty()) observer_.on_warning(problem);
    }
  }

  RankOutput::Sink sink(int rank) {
    return [this, rank](Stream stream, const std::string& line) { observer_.on_line(rank, stream, line); };
  }

  void failed(int attempt, const ProcessEnd& end) {
    RankFailure failure{end.index, attempt, end, {}, outputs_[static_cast<std::size_t>(end.index)].last_lines()};
    if (auto text = read_file(error_file(end.index))) failure.message = message_of_error_file(*text);
    cause_ = failure;
    observer_.on_failure(failure);
  }

  static void send(ProcessSet& ranks, const std::vector<int>& signals) {
    for (int number : signals) ranks.signal_all(number);
  }

  const LaunchOptions& options_;
  LaunchObserver& observer_;
  SignalQueue signals_;
  std::string job_id_, error_dir_;
  TemporaryFolder temporary_;
  std::vector<RankOutput> outputs_;
  std::optional<RankFailure> cause_;
};

}  // namespace

std::string describe(const RankFailure& failure) {
  return fmt::format("rank {} (pid {}) {}", failure.rank, failure.end.pid, describe(failure.end.status));
}

std::string hint(const RankFailure& failure) {
  switch (failure.end.status.signal) {
    case SIGKILL:
      return "SIGKILL came from outside; most often it is the kernel's out-of-memory killer (see dmesg), or a "
             "scheduler's limit";
    case SIGBUS:
      return "SIGBUS often means that shared memory is full: look at df /dev/shm";
    default:
      return "";
  }
}

Result<LaunchOutcome> launch(const LaunchOptions& options, LaunchObserver& observer) {
  YOKE_CHECK(options.ranks > 0, "launch: {} ranks", options.ranks);
  YOKE_TRY(SignalQueue signals, SignalQueue::open({SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2}));
  return Launcher(options, observer, std::move(signals)).run();
}

}  // namespace yoke
