#include "apps/yoke/run_progress.h"

#include <unistd.h>

#include <cstdio>
#include <fstream>

#include "apps/yoke/messages.h"
#include "core/base/text.h"
#include "core/telemetry/step_line.h"
#include "os/clock.h"
#include "os/signals.h"

namespace yoke {
namespace {

template <class... Ts>
struct Overloaded : Ts... {
  using Ts::operator()...;
};
template <class... Ts>
Overloaded(Ts...) -> Overloaded<Ts...>;

}  // namespace

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

void RunProgress::on_line(int rank, Stream stream, const std::string& line) {
  if (stream != Stream::err) return;  // stdout is in the logs
  // A worker's own error is told once, at the end, by whoever knows which rank was the first.
  if (line.starts_with("error: ") || line.starts_with("hint: ")) return;
  print(line.starts_with("warning: ") ? line : fmt::format("[rank {}] {}", rank, line));
}

void RunProgress::on_failure(const RankFailure& failure) {
  clear();
  warn(describe(failure));
}

void RunProgress::on_restart(int restart, const RankFailure& failure) {
  clear();
  note(fmt::format("restart {} of {}, from the newest checkpoint", restart, options_.max_restarts));
  Record record{unix_ns(), -1, RestartEvent{restart, describe(failure)}};
  std::ofstream file(options_.run_dir + "/events/launcher.jsonl", std::ios::app);
  if (!(file << to_json_line(record) << '\n' << std::flush)) warn("events/launcher.jsonl could not be written");
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
                          if (e.checkpoint)
                            print(fmt::format("going on from step {}: {}", e.first_step, *e.checkpoint));
                        },
                        [](const auto&) {}},  // warnings and errors come through stderr
             record.event);
}

void RunProgress::on_tick() {
  if (options_.quiet) return;
  for (const Record& record : tail_.poll()) show(record);
  if (printed_) return;
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
