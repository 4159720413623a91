#include "core/telemetry/step_line.h"

#include <fmt/format.h>

#include <cmath>

#include "core/base/text.h"

namespace yoke {

std::string step_line(const StepEvent& step, std::int64_t total_steps) {
  std::string total = total_steps > 0 ? fmt::format("/{}", total_steps) : "";
  // Padded to the width of the total, so that the columns of successive lines stand below each other.
  std::string line = fmt::format("step: {:>{}}{}", step.step + 1, total.empty() ? 0 : total.size() - 1, total);
  fmt::format_to(std::back_inserter(line), "  loss: {:.4f}  grad_norm: {:.2f}  lr: {:.1e}", step.loss, step.grad_norm,
                 step.learning_rate);
  if (step.loss_scale) line += fmt::format("  scale: {:.10g}", *step.loss_scale);
  if (step.memory.peak_bytes) line += "  memory: " + format_bytes(static_cast<double>(*step.memory.peak_bytes));
  if (step.tokens_per_second && std::isfinite(*step.tokens_per_second)) {
    line += "  tps: " + format_thousands(std::llround(*step.tokens_per_second));
  }
  if (step.mfu) line += fmt::format("  mfu: {:.1f}%", *step.mfu * 100);
  return line;
}

}  // namespace yoke
