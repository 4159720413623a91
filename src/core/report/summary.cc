#include "core/report/summary.h"

#include <fmt/format.h>

#include <cmath>

#include "core/base/text.h"
#include "core/report/words.h"

namespace yoke {
namespace {

class Lines {
 public:
  std::string text;

  void add(std::string_view label, std::string_view value) {
    if (!value.empty()) fmt::format_to(std::back_inserter(text), "  {:<12} {}\n", label, value);
  }
};

std::string title(const Report& report) {
  std::string text = fmt::format("{}: {}, {}", report.name, report.outcome, steps_text(report));
  if (report.wall_seconds) text += " in " + format_seconds(*report.wall_seconds);
  std::string restarts = restarts_text(report);
  return text + (restarts.empty() ? "" : ", " + restarts) + "\n\n";
}

std::string losses(const Report& report) {
  if (!report.last_loss) return not_measured;
  std::string text = fmt::format("{} -> {}", loss_text(report.first_loss->y), loss_text(report.last_loss->y));
  if (report.best_loss) {
    text += fmt::format(", best {} at step {:.0f}", loss_text(report.best_loss->y), report.best_loss->x);
  }
  if (report.losses_not_finite > 0) text += fmt::format(", {} not finite", report.losses_not_finite);
  return text;
}

std::string validation(const Report& report) {
  if (!report.last_validation) return not_measured;
  std::string text = loss_text(report.last_validation->y);
  if (report.best_validation && report.validation_loss.size() > 1) {
    text += fmt::format(", best {} at step {:.0f}", loss_text(report.best_validation->y), report.best_validation->x);
  }
  return text;
}

std::string speed(const Report& report) {
  if (!report.median_tokens_per_second) return not_measured;
  std::string text =
      fmt::format("{} tokens/s (median of {} warm steps; mean {})",
                  format_thousands(std::llround(*report.median_tokens_per_second)), format_thousands(report.warm_steps),
                  format_thousands(std::llround(*report.mean_tokens_per_second)));
  if (report.mean_mfu) text += fmt::format(", MFU {}", percent(*report.mean_mfu));
  return text;
}

void add_step(const Report& report, Lines& lines) {
  if (!report.mean_step_seconds) return lines.add("a step", not_measured);
  lines.add("a step", format_seconds(*report.mean_step_seconds));
  for (const StepPart& part : report.step_parts) {
    if (!part.seconds || negligible(*part.seconds, *report.mean_step_seconds)) continue;
    double share = *part.seconds / *report.mean_step_seconds;
    std::string bar;
    for (long k = std::lround(share * 30); k > 0; --k) bar += "\u2588";
    std::string line = fmt::format("{:<22} {:>8} {:>6}  {}", part_title(part.name), format_seconds(*part.seconds),
                                   percent(share), bar);
    line.erase(line.find_last_not_of(' ') + 1);
    lines.add("", line);
  }
}

std::string memory(const Report& report) {
  const auto& [name, predicted, measured] = report.peak_memory;
  if (!measured)
    return predicted ? fmt::format("{}, predicted {}", not_measured, format_bytes(*predicted)) : not_measured;
  std::string text = format_bytes(*measured) + " a rank at the peak";
  if (predicted)
    text += fmt::format(" (predicted {}, {})", format_bytes(*predicted), difference(*predicted, *measured));
  return text;
}

std::string checkpoints(const Report& report) {
  if (report.checkpoints == 0) return "none";
  std::string text =
      fmt::format("{}, the last after step {}, {}", report.checkpoints, format_thousands(*report.last_checkpoint_step),
                  format_bytes(static_cast<double>(*report.last_checkpoint_bytes)));
  return text + fmt::format(", {} each in the background", format_seconds(*report.mean_checkpoint_seconds));
}

}  // namespace

std::string report_summary(const Report& report) {
  Lines lines{title(report)};
  lines.add("model", model_text(report));
  lines.add("ran on", ranks_text(report));
  lines.add("loss", losses(report));
  if (report.steps_skipped > 0) {
    lines.add("skipped",
              fmt::format("{} of {} steps: their gradients overflowed in fp16", format_thousands(report.steps_skipped),
                          format_thousands(static_cast<std::int64_t>(report.loss.size()))));
  }
  lines.add("validation", validation(report));
  lines.add("tokens", report.tokens ? format_thousands(*report.tokens) : not_measured);
  lines.add("speed", speed(report));
  add_step(report, lines);
  lines.add("memory", memory(report));
  lines.add("checkpoints", checkpoints(report));
  lines.add("start-up", report.startup_seconds ? format_seconds(*report.startup_seconds) : not_measured);
  for (std::size_t i = 0; i < report.restarts.size() && i < 3; ++i) {
    lines.add(restart_title(report, i), restart_text(report.restarts[i]));
  }
  if (report.restarts.size() > 3) lines.add("", fmt::format("and {} more", report.restarts.size() - 3));
  std::size_t warnings = 0;
  for (const ReportMessage& message : report.messages) {
    if (message.error) {
      lines.add("error", fmt::format("rank {}: {}", message.rank, message.what));
    } else {
      ++warnings;
    }
  }
  if (warnings > 0) lines.add("warnings", fmt::format("{}, see the report", warnings));
  for (const std::string& problem : report.problems) lines.add("note", problem);
  lines.add("report", (report.folder.empty() ? "" : report.folder + "/") + "report.html");
  return lines.text;
}

}  // namespace yoke
