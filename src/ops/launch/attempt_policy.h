// What to do when ranks end, signals arrive and time passes, during one attempt. Decisions only: no process, no clock.
//
// Times are monotonic nanoseconds. Each event returns the signals that all living ranks shall get now.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "os/warden.h"

namespace yoke {

struct Grace {        // seconds from the first signal to SIGKILL
  double stop = 30;   // after a signal from outside: time for a checkpoint
  double peers = 30;  // after another rank has failed
};

class AttemptPolicy {
 public:
  explicit AttemptPolicy(Grace grace) : grace_(grace) {}

  std::vector<int> on_end(const ProcessEnd& end, std::int64_t now);
  // SIGINT, SIGTERM, SIGHUP and SIGQUIT stop the job, others are only passed on. A second SIGINT kills at once.
  std::vector<int> on_signal(int number, std::int64_t now);
  std::vector<int> on_time(std::int64_t now);

  // When on_time() will have something to do.
  std::optional<std::int64_t> deadline() const { return deadline_; }
  // The first rank that failed while nobody had been told to stop.
  const std::optional<ProcessEnd>& cause() const { return cause_; }
  // Ranks that failed after it by themselves: an exit code of their own, or a signal that was not sent to them from
  // here.
  const std::vector<ProcessEnd>& also_failed() const { return also_failed_; }
  // Whether all that failed by themselves ended with this exit code: nobody was killed, or gave up in another way.
  bool failed_only_with(int code) const;
  // What stopped the job from outside; 0: nothing did.
  int stop_signal() const { return stop_signal_; }

 private:
  void kill_after(double seconds, std::int64_t now);

  Grace grace_;
  std::optional<std::int64_t> deadline_;
  std::optional<ProcessEnd> cause_;
  std::vector<ProcessEnd> also_failed_;
  std::vector<int> sent_;
  int stop_signal_ = 0;
};

}  // namespace yoke
