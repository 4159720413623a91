// What a launch shows: the ranks' lines, each with its rank in front, and what happens to the ranks.
#pragma once

#include <string>
#include <vector>

#include "ops/launch/launch.h"

namespace yoke {

class LaunchConsole : public LaunchObserver {
 public:
  // shown[rank]: 1 stdout, 2 stderr, 3 both. The ranks' stdout goes to stdout, their stderr to stderr.
  LaunchConsole(std::vector<int> shown, int max_restarts) : shown_(std::move(shown)), max_restarts_(max_restarts) {}

  void on_line(int rank, Stream stream, const std::string& line) override;
  void on_failure(const RankFailure& failure) override;
  void on_restart(int restart, const RankFailure& failure) override;
  void on_signal(int number) override;
  void on_warning(const std::string& text) override;

 private:
  std::vector<int> shown_;
  int max_restarts_;
};

// The last word on a launch that did not end well, on stderr: which rank, why, its last lines, and where to read more.
void report_outcome(const LaunchOutcome& outcome, const std::string& log_dir);

}  // namespace yoke
