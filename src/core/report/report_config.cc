#include "core/report/report_config.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/base/text.h"

namespace yoke {
namespace {

using Json = nlohmann::ordered_json;

// The value at a path of keys, or null.
Json at(const Json& json, std::initializer_list<const char*> path) {
  const Json* here = &json;
  for (const char* key : path) {
    if (!here->is_object() || !here->contains(key)) return nullptr;
    here = &here->at(key);
  }
  return *here;
}

std::string text_of(const Json& value) { return value.is_string() ? value.get<std::string>() : std::string(); }
std::optional<double> number_of(const Json& value) {
  return value.is_number() ? std::optional(value.get<double>()) : std::nullopt;
}

// "data 2, tensor 4, ZeRO 1"; empty when it says nothing.
std::string layout_text(const Json& layout) {
  if (!layout.is_object()) return text_of(layout);
  std::vector<std::string> parts;
  bool any = false;
  for (const char* axis : {"data", "tensor", "pipeline", "context", "expert"}) {
    Json size = at(layout, {axis});
    if (!size.is_number_integer()) continue;
    any = true;
    if (size.get<std::int64_t>() > 1) parts.push_back(fmt::format("{} {}", axis, size.get<std::int64_t>()));
  }
  if (!any) return "";
  if (parts.empty()) parts.push_back("one rank");
  Json zero = at(layout, {"zero"});
  if (zero.is_number_integer() && zero.get<int>() > 0) parts.push_back(fmt::format("ZeRO {}", zero.get<int>()));
  return join(parts, ", ");
}

void flatten(const Json& value, const std::string& key, const Json& origins, std::vector<ReportSpecValue>& out) {
  if (value.is_object()) {
    for (const auto& [name, inner] : value.items()) flatten(inner, key.empty() ? name : key + "." + name, origins, out);
    return;
  }
  std::string shown = value.is_string() ? value.get<std::string>()
                                        : value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
  out.push_back({key, shown, text_of(at(origins, {key.c_str()}))});
}

Json parsed(const std::string& text, const char* file, Report& report) {
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) report.problems.push_back(fmt::format("{} is not a JSON object", file));
  return json.is_object() ? json : Json();
}

}  // namespace

void read_run_json(const std::string& text, Report& report) {
  Json json = parsed(text, "run.json", report);
  Json spec = at(json, {"spec"});
  report.name = text_of(at(spec, {"name"}));
  report.model = text_of(at(spec, {"model", "preset"}));
  if (report.model.empty()) report.model = text_of(at(spec, {"model", "path"}));
  report.precision = text_of(at(spec, {"train", "precision"}));
  report.layout = layout_text(at(spec, {"parallel"}));
  if (report.layout.empty()) report.layout = text_of(at(spec, {"parallel", "layout"}));
  Json steps = at(spec, {"train", "steps"});
  if (steps.is_number_integer()) report.steps_planned = steps.get<std::int64_t>();
  if (spec.is_object()) flatten(spec, "", at(json, {"origins"}), report.spec);
}

void read_plan_json(const std::string& text, Report& report) {
  Json json = parsed(text, "plan.json", report);
  std::string layout = layout_text(at(json, {"layout"}));
  if (!layout.empty()) report.layout = layout;
  report.peak_memory.predicted = number_of(at(json, {"memory_bytes", "total"}));
  for (MemoryPart& part : report.memory_parts)
    part.predicted = number_of(at(json, {"memory_bytes", part.name.c_str()}));
}

}  // namespace yoke
