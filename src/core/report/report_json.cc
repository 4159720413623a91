#include "core/report/report_json.h"

#include <cmath>
#include <nlohmann/json.hpp>

namespace yoke {
namespace {

using Json = nlohmann::ordered_json;

constexpr int schema = 1;

Json number(double value) {
  if (std::isfinite(value)) return value;
  return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
}

class Object {
 public:
  Json json = Json::object();

  void add(const char* key, const std::optional<double>& value) {
    if (value) json[key] = number(*value);
  }
  void add(const char* key, const std::optional<std::int64_t>& value) {
    if (value) json[key] = *value;
  }
  void add(const char* key, const std::string& value) {
    if (!value.empty()) json[key] = value;
  }
  // A loss and the number of steps done when it was met.
  void add(const char* key, const std::optional<Point>& point) {
    if (point) json[key] = {{"step", static_cast<std::int64_t>(point->x)}, {"value", number(point->y)}};
  }
  void add(const char* key, const Object& inner) {
    if (!inner.json.empty()) json[key] = inner.json;
  }
};

Object memory_of(const Report& report, std::optional<double> MemoryPart::*side) {
  Object memory;
  memory.add("peak_bytes", report.peak_memory.*side);
  for (const MemoryPart& part : report.memory_parts) memory.add(part.name.c_str(), part.*side);
  return memory;
}

Object step_of(const Report& report) {
  Object step, parts;
  step.add("mean_seconds", report.mean_step_seconds);
  step.add("median_seconds", report.median_step_seconds);
  for (const StepPart& part : report.step_parts) parts.add(part.name.c_str(), part.seconds);
  step.add("part_seconds", parts);
  return step;
}

Json restarts_of(const Report& report) {
  Json list = Json::array();
  for (const ReportRestart& restart : report.restarts) {
    Object object;
    object.json["attempt"] = restart.attempt;
    object.add("reason", restart.reason);
    object.add("at_step", restart.at_step);
    object.add("resumed_at", restart.resumed_at);
    object.add("repeated_steps", restart.repeated_steps());
    object.add("lost_seconds", restart.lost_seconds);
    list.push_back(std::move(object.json));
  }
  return list;
}

Json messages_of(const Report& report) {
  Json list = Json::array();
  for (const ReportMessage& message : report.messages) {
    Object object;
    object.json["kind"] = message.error ? "error" : "warning";
    object.json["rank"] = message.rank;
    object.json["count"] = message.count;
    object.add("what", message.what);
    object.add("hint", message.hint);
    list.push_back(std::move(object.json));
  }
  return list;
}

}  // namespace

std::string report_json(const Report& report) {
  Object root;
  root.json["schema"] = schema;
  root.json["name"] = report.name;
  root.json["outcome"] = report.outcome;
  root.add("model", report.model);
  root.add("parameters", report.parameters);
  root.add("layout", report.layout);
  root.add("precision", report.precision);
  root.add("device", report.device);
  root.add("world_size", report.world_size);
  root.json["hosts"] = report.hosts;
  root.add("start_ns", report.start_ns);
  root.add("wall_seconds", report.wall_seconds);
  root.add("startup_seconds", report.startup_seconds);
  root.json["steps_done"] = report.steps_done;
  root.json["steps_skipped"] = report.steps_skipped;
  root.add("steps_planned", report.steps_planned);
  root.add("tokens", report.tokens);
  Object loss, validation, speed, checkpoints;
  loss.add("first", report.first_loss);
  loss.add("last", report.last_loss);
  loss.add("best", report.best_loss);
  if (report.last_loss) loss.json["not_finite"] = report.losses_not_finite;
  root.add("loss", loss);
  validation.add("last", report.last_validation);
  validation.add("best", report.best_validation);
  root.add("validation_loss", validation);
  root.json["warm_steps"] = report.warm_steps;
  speed.add("median", report.median_tokens_per_second);
  speed.add("mean", report.mean_tokens_per_second);
  root.add("tokens_per_second", speed);
  root.add("mean_mfu", report.mean_mfu);
  root.add("step", step_of(report));
  root.add("memory_measured", memory_of(report, &MemoryPart::measured));
  root.add("memory_predicted", memory_of(report, &MemoryPart::predicted));
  checkpoints.json["count"] = report.checkpoints;
  checkpoints.add("last_step", report.last_checkpoint_step);
  checkpoints.add("last_bytes", report.last_checkpoint_bytes);
  checkpoints.add("mean_seconds", report.mean_checkpoint_seconds);
  root.add("checkpoints", checkpoints);
  root.json["restarts"] = restarts_of(report);
  root.json["messages"] = messages_of(report);
  root.json["versions"] = report.versions;
  root.json["problems"] = report.problems;
  return root.json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

}  // namespace yoke
