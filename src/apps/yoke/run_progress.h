// What `yoke run` shows while ranks train, on stderr: the newest step, checkpoints, validation, warnings, restarts, and
// ranks that somebody has stopped. On a terminal the step line is rewritten in place; elsewhere it is printed now and
// then. Also says which failures a restart cannot cure.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "apps/yoke/event_tail.h"
#include "core/base/error.h"
#include "ops/launch/launch.h"

namespace yoke {

// What a worker said itself before it failed: its last "error: ..." and "hint: ..." lines, or what its uncaught
// std::bad_alloc means. Nothing when it was killed.
std::optional<Error> worker_error(const RankFailure& failure);

class RunProgress : public LaunchObserver {
 public:
  struct Options {
    std::string run_dir;
    std::string resume;  // checkpoint.resume
    std::int64_t total_steps = 0;
    int max_restarts = 0;
    bool quiet = false;     // only warnings and errors
    bool terminal = false;  // stderr can be rewritten
    double every = 10;      // seconds between step lines where it cannot
  };
  explicit RunProgress(Options options);

  void on_attempt(const AttemptInfo& info) override;
  void on_line(int rank, Stream stream, const std::string& line) override;
  void on_failure(const RankFailure& failure) override;
  bool worth_a_restart(const RankFailure& failure, const AttemptPolicy& policy) override;
  void on_restart(int restart, const RankFailure& failure) override;
  void on_signal(int number) override;
  void on_warning(const std::string& text) override;
  void on_tick() override;

  // A person goes on with this run.
  void on_resume();
  // The last step that was not printed yet, and the end of the rewritten line.
  void finish();

 private:
  void show(const Record& record);
  void print(const std::string& line);  // a line that stays
  void clear();
  void record(const RestartEvent& event);
  void look_for_stopped_ranks();

  Options options_;
  EventTail tail_;
  std::vector<pid_t> pids_;  // by rank
  std::set<int> stopped_;    // ranks
  bool stepped_ = false;     // this attempt has done a step
  std::string step_line_;    // the newest
  bool shown_ = false;       // it is what the terminal shows
  bool drawn_ = false;       // a line to be rewritten stands on the terminal's last line
  bool printed_ = true;      // it has been printed as a line that stays
  std::optional<std::int64_t> last_print_;
};

}  // namespace yoke
