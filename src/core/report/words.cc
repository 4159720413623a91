#include "core/report/words.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/base/text.h"

namespace yoke {

std::string part_title(const std::string& name) {
  if (name == "communication_exposed") return "exposed communication";
  if (name == "peak_bytes") return "peak";
  return name;
}

std::string loss_text(double loss) {
  double size = std::abs(loss);
  bool plain = loss == 0 || !std::isfinite(loss) || (size >= 1e-3 && size < 1e5);
  return plain ? fmt::format("{:.4f}", loss) : fmt::format("{:.3e}", loss);
}

bool negligible(double part, double whole) { return part < 0.0005 * whole; }

std::string percent(double part, double whole) { return fmt::format("{:.1f}%", part / whole * 100); }

std::string difference(double predicted, double measured) {
  return predicted > 0 ? fmt::format("{:+.1f}%", (measured / predicted - 1) * 100) : "";
}

std::string steps_text(const Report& report) {
  std::string done = format_thousands(report.steps_done);
  if (!report.steps_planned) return done + (report.steps_done == 1 ? " step" : " steps");
  return fmt::format("{} of {} steps", done, format_thousands(*report.steps_planned));
}

std::string model_text(const Report& report) {
  std::vector<std::string> parts;
  if (!report.model.empty()) parts.push_back(report.model);
  if (report.parameters) parts.push_back(format_count(static_cast<double>(*report.parameters)) + " parameters");
  return join(parts, ", ");
}

std::string ranks_text(const Report& report) {
  std::vector<std::string> parts;
  if (report.world_size) {
    std::string ranks = *report.world_size == 1 ? "1 rank" : fmt::format("{} ranks", *report.world_size);
    if (!report.device.empty()) ranks += " on " + report.device.substr(0, report.device.find(':'));
    if (report.hosts.size() > 1) ranks += fmt::format(", {} nodes", report.hosts.size());
    parts.push_back(ranks);
  }
  if (!report.layout.empty()) parts.push_back(report.layout);
  if (!report.precision.empty()) parts.push_back(report.precision);
  return join(parts, ", ");
}

std::string restarts_text(const Report& report) {
  auto resumes = std::ranges::count(report.restarts, 0, &ReportRestart::attempt);
  auto restarts = static_cast<std::ptrdiff_t>(report.restarts.size()) - resumes;
  std::vector<std::string> parts;
  if (restarts > 0) parts.push_back(fmt::format("{} {}", restarts, restarts == 1 ? "restart" : "restarts"));
  if (resumes > 0) parts.push_back(fmt::format("resumed {} {}", resumes, resumes == 1 ? "time" : "times"));
  return join(parts, ", ");
}

std::string restart_title(const Report& report, std::size_t place) {
  if (report.restarts[place].attempt == 0) return "resumed";
  auto before = report.restarts.begin() + static_cast<std::ptrdiff_t>(place);
  return fmt::format("restart {}",
                     place + 1 - std::ranges::count(report.restarts.begin(), before, 0, &ReportRestart::attempt));
}

std::string restart_text(const ReportRestart& restart) {
  std::string text = restart.at_step ? fmt::format("after step {}: ", format_thousands(*restart.at_step)) : "";
  if (!restart.reason.empty()) {
    text += restart.reason;
  } else {
    text += restart.attempt == 0 ? "by a new start of the run" : "reason not recorded";
  }
  std::vector<std::string> costs;
  if (auto repeated = restart.repeated_steps()) {
    costs.push_back(fmt::format("{} {} repeated", format_thousands(*repeated), *repeated == 1 ? "step" : "steps"));
  }
  if (restart.lost_seconds) costs.push_back(format_seconds(*restart.lost_seconds) + " lost");
  return costs.empty() ? text : fmt::format("{} ({})", text, join(costs, ", "));
}

}  // namespace yoke
