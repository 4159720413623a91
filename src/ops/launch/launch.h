// Gets ranks to run on this node and keeps them running: environment, output, failure, restart, signals, and nothing
// left behind, whatever happens to the launcher.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "ops/launch/attempt_policy.h"
#include "ops/launch/rank_output.h"
#include "os/environment.h"

namespace yoke {

struct LaunchOptions {
  std::vector<std::string> command;  // argv of every rank; argv[0] is looked up in PATH
  int ranks = 1;
  Environment environment;  // what the ranks get, before their place in the job is added
  std::string master_address = "127.0.0.1";
  int master_port = 0;  // 0: a free one, a new one for each attempt
  int max_restarts = 0;
  std::vector<int> final_codes;  // exit codes that no restart can cure
  std::string role = "default";
  std::string run_id;   // TORCHELASTIC_RUN_ID; empty: the job's id
  std::string run_dir;  // YOKE_RUN_DIR; empty: not set
  std::string log_dir;  // rank-00000.log, ...; made if it is not there; empty: no log files
  Grace grace;
};

struct RankFailure {
  int rank = 0;
  int attempt = 0;
  ProcessEnd end;
  std::string message;                  // of the exception, if the script recorded it
  std::vector<std::string> last_lines;  // of its output
};

// "rank 1 (pid 4242) was killed by SIGSEGV".
std::string describe(const RankFailure& failure);
// What to do about it; may be empty.
std::string hint(const RankFailure& failure);

struct LaunchOutcome {
  int exit_code = 0;  // 0, the code of the rank that failed first (128 + N for a signal), 128 + N if stopped by N
  std::optional<RankFailure> cause;     // of the last attempt: the rank that failed first
  std::vector<ProcessEnd> also_failed;  // after it, by themselves
  int stop_signal = 0;                  // what stopped the job from outside
  int restarts = 0;
  std::vector<ProcessInfo> survivors;  // processes that did not die of SIGKILL
};

struct AttemptInfo {
  int attempt = 0;
  int master_port = 0;
  std::vector<pid_t> pids;  // by rank
};

// Called on the launching thread, between two looks at the ranks: be short.
class LaunchObserver {
 public:
  virtual ~LaunchObserver() = default;
  virtual void on_attempt(const AttemptInfo&) {}
  virtual void on_line(int /*rank*/, Stream, const std::string& /*line*/) {}
  virtual void on_failure(const RankFailure&) {}  // the first of an attempt, at once
  // After an attempt that failed, if a restart is left: whether it may cure that.
  virtual bool worth_a_restart(const RankFailure&, const AttemptPolicy&) { return true; }
  virtual void on_restart(int /*restart*/, const RankFailure&) {}  // before the attempt begins
  virtual void on_signal(int /*number*/) {}
  virtual void on_warning(const std::string&) {}
  virtual void on_tick() {}  // about every 100 ms
};

// Returns when no rank is left. An Error means that the ranks could not be started or supervised; a rank that fails is
// an outcome. While it runs, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1 and SIGUSR2 of this process go to the ranks (not
// to their children). The ranks' stdin is /dev/null. Call from a process without other threads.
Result<LaunchOutcome> launch(const LaunchOptions& options, LaunchObserver& observer);

}  // namespace yoke
