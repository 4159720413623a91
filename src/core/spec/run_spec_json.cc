#include "core/spec/run_spec.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/spec/keys.h"
#include "core/spec/run_spec_check.h"

namespace yoke {
namespace {

using nlohmann::json;

constexpr int schema = 1;

json to_json_value(const Value& value) {
  return std::visit(
      [](const auto& v) -> json {
        using T = std::decay_t<decltype(v)>;
        if constexpr (std::is_same_v<T, Unusable>) {
          return nullptr;
        } else if constexpr (std::is_same_v<T, std::vector<Scalar>>) {
          json list = json::array();
          for (const Scalar& item : v) std::visit([&](const auto& i) { list.push_back(i); }, item);
          return list;
        } else {
          return v;
        }
      },
      value);
}

std::optional<Scalar> scalar_of(const json& j) {
  if (j.is_boolean()) return j.get<bool>();
  if (j.is_number_unsigned() && j.get<std::uint64_t>() > INT64_MAX) return std::nullopt;
  if (j.is_number_integer()) return j.get<std::int64_t>();
  if (j.is_number_float()) return j.get<double>();
  if (j.is_string()) return j.get_ref<const std::string&>();
  return std::nullopt;
}

Value value_of(const json& j) {
  if (auto scalar = scalar_of(j)) return std::visit([](const auto& v) { return Value(v); }, *scalar);
  if (!j.is_array()) return Unusable{j.is_object() ? "a table" : "no value"};
  std::vector<Scalar> list;
  for (const json& item : j) {
    auto scalar = scalar_of(item);
    if (!scalar) return Unusable{"a list of more than plain values"};
    list.push_back(std::move(*scalar));
  }
  return list;
}

void flatten(const json& object, const std::string& section, std::vector<std::pair<std::string, Value>>& out) {
  for (const auto& [name, value] : object.items()) {
    const std::string key = section.empty() ? name : section + "." + name;
    if (value.is_object() && is_section(key)) {
      flatten(value, key, out);
    } else {
      out.emplace_back(key, value_of(value));
    }
  }
}

Error malformed(const std::string& file, const std::string& what) {
  return {ErrorKind::usage, fmt::format("{}: {}", file, what),
          "run.json is written by yoke run; write it anew from the run spec"};
}

Result<ResolvedSpec> read_resolved(const json& root, const std::string& file) {
  if (!root.is_object()) return tl::unexpected(malformed(file, "not a JSON object"));
  auto version = root.find("schema");
  if (version == root.end() || *version != schema) {
    return tl::unexpected(malformed(file, fmt::format("schema is not {}", schema)));
  }
  auto spec = root.find("spec");
  if (spec == root.end() || !spec->is_object()) return tl::unexpected(malformed(file, "spec is missing"));
  std::vector<std::pair<std::string, Value>> values;
  flatten(*spec, "", values);
  ResolvedSpec resolved;
  for (const auto& [key, value] : values)
    if (find_row(key) == nullptr) return tl::unexpected(unknown_key(key, file));
  for (const Row& row : rows()) {
    for (const auto& [key, value] : values)
      if (key == row.info.key) YOKE_TRY_VOID(assign(resolved.spec, row, value, file));
  }
  for (const Row& row : rows()) {
    if (row.info.required && !row.get(resolved.spec))
      return tl::unexpected(malformed(file, row.info.key + " is missing"));
  }
  if (auto origins = root.find("origins"); origins != root.end() && origins->is_object()) {
    for (const auto& [key, origin] : origins->items())
      if (origin.is_string()) resolved.origins[key] = origin.get_ref<const std::string&>();
  }
  YOKE_TRY_VOID(check_consistency(resolved, file));
  return resolved;
}

}  // namespace

std::string to_json(const ResolvedSpec& resolved) {
  json spec = json::object();
  for (const Row& row : rows()) {
    auto value = row.get(resolved.spec);
    if (!value) continue;
    std::string pointer = "/" + row.info.key;
    for (char& c : pointer)
      if (c == '.') c = '/';
    spec[json::json_pointer(pointer)] = to_json_value(*value);
  }
  json root = {{"schema", schema}, {"spec", std::move(spec)}, {"origins", resolved.origins}};
  return root.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

Result<ResolvedSpec> run_spec_from_json(std::string_view text, const std::string& file) {
  try {
    return read_resolved(json::parse(text), file);
  } catch (const json::parse_error& error) {
    return tl::unexpected(malformed(file, fmt::format("not JSON at byte {}", error.byte)));
  } catch (const json::out_of_range&) {
    return tl::unexpected(malformed(file, "a number is too large to be read"));
  }
}

}  // namespace yoke
