#include "apps/yoke/launch_console.h"

#include <unistd.h>

#include <cstdio>

#include "apps/yoke/messages.h"
#include "os/signals.h"

namespace yoke {

void LaunchConsole::on_line(int rank, Stream stream, const std::string& line) {
  if ((shown_[static_cast<std::size_t>(rank)] & (stream == Stream::out ? 1 : 2)) == 0) return;
  constexpr Colour colours[] = {Colour::cyan, Colour::magenta, Colour::green, Colour::blue, Colour::yellow};
  std::FILE* to = stream == Stream::out ? stdout : stderr;
  std::string prefix = coloured(fmt::format("[rank {}]", rank), colours[rank % 5], ::fileno(to));
  std::string text = fmt::format("{} {}\n", prefix, line);
  std::fwrite(text.data(), 1, text.size(), to);
  std::fflush(to);
}

void LaunchConsole::on_failure(const RankFailure& failure) {
  bool alone = shown_.size() == 1;
  warn(fmt::format("{}{}", describe(failure), alone ? "" : "; stopping the other ranks"));
}

void LaunchConsole::on_restart(int restart, const RankFailure&) {
  note(fmt::format("restart {} of {}", restart, max_restarts_));
}

void LaunchConsole::on_signal(int number) {
  note(fmt::format("{} received, passed on to the ranks", signal_name(number)));
}

void LaunchConsole::on_warning(const std::string& text) { warn(text); }

void report_outcome(const LaunchOutcome& outcome, const std::string& log_dir) {
  for (const ProcessInfo& left : outcome.survivors) {
    warn(fmt::format("process {} ({}) does not end, even by SIGKILL: it waits for a device or a file system", left.pid,
                     left.name));
  }
  if (outcome.stop_signal != 0) {
    note(fmt::format("stopped by {}", signal_name(outcome.stop_signal)));
    return;
  }
  if (!outcome.cause) return;
  const RankFailure& failure = *outcome.cause;
  std::string what = describe(failure);
  if (!failure.message.empty()) what += ": " + failure.message;
  Error error{ErrorKind::failed, what, hint(failure)};
  if (!log_dir.empty()) {
    error.hint += fmt::format("{}its whole output is in {}/rank-{:05}.log", error.hint.empty() ? "" : "; ", log_dir,
                              failure.rank);
  }
  if (!failure.last_lines.empty()) fmt::print(stderr, "The last lines of rank {}:\n", failure.rank);
  for (const std::string& line : failure.last_lines) fmt::print(stderr, "  {}\n", line);
  for (const ProcessEnd& end : outcome.also_failed) {
    note(fmt::format("after it, rank {} (pid {}) {}", end.index, end.pid, describe(end.status)));
  }
  report_error(error);
}

}  // namespace yoke
