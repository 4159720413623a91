#include "apps/yoke/run_progress.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <fstream>

#include "apps/yoke/messages.h"
#include "core/base/text.h"
#include "core/telemetry/step_line.h"
#include "os/clock.h"
#include "os/file.h"
#include "os/memory_limit.h"
#include "os/process_table.h"
#include "os/signals.h"

namespace yoke {
namespace {

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

bool holds_checkpoint(const std::string& run_dir) {
  auto names = list_folder(run_dir + "/checkpoints");
  return names && std::ranges::any_of(*names, [](const std::string& name) { return name.starts_with("step-"); });
}

}  // namespace

std::optional<Error> worker_error(const RankFailure& failure) {
  constexpr std::string_view error_mark = "error: ", hint_mark = "hint: ";
  std::optional<Error> error;
  for (const std::string& line : failure.last_lines) {
    if (line.starts_with(error_mark)) error = Error{ErrorKind::failed, line.substr(error_mark.size()), ""};
    if (error && line.starts_with(hint_mark)) error->hint = line.substr(hint_mark.size());
    // Thrown where nobody can catch it, such as while libtorch is loaded.
    if (failure.end.status.signal == SIGABRT && line.find("std::bad_alloc") != std::string::npos) {
      error = out_of_memory();
      error->what = fmt::format("{}: {}", describe(failure), error->what);
    }
  }
  return error;
}

RunProgress::RunProgress(Options options)
    : options_(std::move(options)), tail_(options_.run_dir + "/events/rank-00000.jsonl", false) {}

void RunProgress::clear() {
  if (drawn_) fmt::print(stderr, "\r\033[K");
  drawn_ = shown_ = false;
}

void RunProgress::print(const std::string& line) {
  clear();
  fmt::print(stderr, "{}\n", line);
}

void RunProgress::on_attempt(const AttemptInfo& info) {
  pids_ = info.pids;
  stopped_.clear();
  stepped_ = false;
}

void RunProgress::on_line(int rank, Stream stream, const std::string& line) {
  if (stream != Stream::err) return;  // stdout is in the logs
  // A worker's own error is told by whoever knows which rank was the first.
  if (line.starts_with("error: ") || line.starts_with("hint: ")) return;
  print(line.starts_with("warning: ") ? line : fmt::format("[rank {}] {}", rank, line));
}

void RunProgress::on_failure(const RankFailure& failure) {
  clear();
  std::string text = describe(failure);
  bool again = failure.attempt < options_.max_restarts;  // the error of the last attempt is told at the end
  if (auto error = worker_error(failure); error && again && stepped_) text += ": " + error->what;
  warn(text);
  for (int rank : stopped_)
    note(fmt::format("rank {} is still stopped; it is killed{}", rank, again ? ", and all ranks start again" : ""));
}

bool RunProgress::worth_a_restart(const RankFailure& failure, const AttemptPolicy& policy) {
  bool no_memory = failure.end.status.signal == SIGABRT && worker_error(failure).has_value();
  bool worth = stepped_ || !(no_memory || policy.failed_only_with(exit_code(ErrorKind::failed)));
  if (!worth) {
    clear();
    note("not started again: it failed before its first step, and would again");
  }
  return worth;
}

void RunProgress::on_restart(int restart, const RankFailure& failure) {
  clear();
  bool given = options_.resume != "auto" && options_.resume != "none";
  std::string from = holds_checkpoint(options_.run_dir) ? "the newest checkpoint"
                     : given                            ? options_.resume
                                                        : "the start";
  note(fmt::format("restart {} of {}, from {}", restart, options_.max_restarts, from));
  auto error = stepped_ ? worker_error(failure) : std::nullopt;
  record({restart, describe(failure) + (error ? ": " + error->what : "")});
}

void RunProgress::on_resume() { record({0, "yoke run --resume"}); }

void RunProgress::record(const RestartEvent& event) {
  std::ofstream file(options_.run_dir + "/events/launcher.jsonl", std::ios::app);
  if (!(file << to_json_line({unix_ns(), -1, event}) << '\n' << std::flush))
    warn("events/launcher.jsonl could not be written");
}

void RunProgress::on_signal(int number) {
  clear();
  note(number == SIGINT ? "SIGINT passed on: the ranks save a checkpoint and stop; once more kills them"
                        : fmt::format("{} passed on to the ranks", signal_name(number)));
}

void RunProgress::on_warning(const std::string& text) {
  clear();
  warn(text);
}

void RunProgress::show(const Record& record) {
  std::visit(Overloaded{[&](const StepEvent& e) {
                          step_line_ = step_line(e, options_.total_steps);
                          printed_ = shown_ = false;
                        },
                        [&](const ValidationEvent& e) {
                          print(fmt::format("validation after step {}: loss {:.4f}", e.step + 1, e.loss));
                        },
                        [&](const CheckpointEvent& e) {
                          print(fmt::format("checkpoint after step {}: {} in {}", e.step,
                                            format_bytes(static_cast<double>(e.bytes)), format_seconds(e.seconds)));
                        },
                        [&](const StartEvent& e) {
                          if (e.checkpoint && e.first_step < options_.total_steps)
                            print(fmt::format("going on from step {}: {}", e.first_step, *e.checkpoint));
                        },
                        [](const auto&) {}},  // warnings and errors come through stderr
             record.event);
}

// Nobody else tells the person before train.collective_timeout is over.
void RunProgress::look_for_stopped_ranks() {
  for (std::size_t rank = 0; rank < pids_.size(); ++rank) {
    auto info = process_info(pids_[rank]);
    if (!info || info->state != 'T') {
      stopped_.erase(static_cast<int>(rank));
    } else if (stopped_.insert(static_cast<int>(rank)).second) {
      clear();
      warn(
          fmt::format("rank {0} (pid {1}) is stopped by a signal, and the others wait for it: kill -CONT {1} lets it "
                      "go on",
                      rank, pids_[rank]));
    }
  }
}

void RunProgress::on_tick() {
  look_for_stopped_ranks();
  for (const Record& record : tail_.poll()) {
    stepped_ = stepped_ || std::holds_alternative<StepEvent>(record.event);
    if (!options_.quiet) show(record);
  }
  if (printed_ || options_.quiet) return;
  if (options_.terminal) {
    if (shown_) return;
    auto width = static_cast<std::size_t>(terminal_width(STDERR_FILENO));
    fmt::print(stderr, "\r\033[K{}", step_line_.substr(0, width - 1));
    drawn_ = shown_ = true;
    return;
  }
  std::int64_t now = monotonic_ns();
  if (last_print_ && static_cast<double>(now - *last_print_) < options_.every * 1e9) return;
  print(step_line_);
  printed_ = true;
  last_print_ = now;
}

void RunProgress::finish() {
  on_tick();
  if (!printed_) print(step_line_);
  printed_ = true;
}

}  // namespace yoke
