#include "train/checkpoint/json_object.h"

#include <optional>
#include <set>
#include <vector>

namespace yoke {

using nlohmann::json;

Result<json> parse_json_object(std::string_view text, const std::string& file, int deepest) {
  bool too_deep = false;
  std::optional<std::string> twice;
  std::vector<std::set<std::string>> keys(static_cast<std::size_t>(deepest) + 2);  // of the open object at each depth
  auto watch = [&](int depth, json::parse_event_t event, json& parsed) {
    too_deep |= depth > deepest;
    if (too_deep) return false;
    auto at = static_cast<std::size_t>(depth);
    if (event == json::parse_event_t::object_start) keys[at + 1].clear();
    if (event == json::parse_event_t::key && !keys[at].insert(parsed.get<std::string>()).second)
      twice = parsed.get<std::string>();
    return true;
  };
  json value;
  try {
    value = json::parse(text, watch);
  } catch (const json::exception& error) {  // also of numbers that no type holds
    return fail(ErrorKind::failed, fmt::format("{} is not JSON: {}", file, error.what()));
  }
  if (too_deep) return fail(ErrorKind::failed, fmt::format("{} is nested deeper than {}", file, deepest));
  if (twice) return fail(ErrorKind::failed, fmt::format("{} has \"{}\" twice", file, *twice));
  if (!value.is_object()) return fail(ErrorKind::failed, fmt::format("{} is no JSON object", file));
  return value;
}

namespace {

Result<json> member(const json& object, const char* key, const std::string& file, json::value_t type,
                    const char* what) {
  auto found = object.find(key);
  if (found == object.end()) return fail(ErrorKind::failed, fmt::format("{} has no \"{}\"", file, key));
  if (found->type() != type) return fail(ErrorKind::failed, fmt::format("{}: \"{}\" is no {}", file, key, what));
  return *found;
}

}  // namespace

Result<std::int64_t> integer_member(const json& object, const char* key, const std::string& file) {
  YOKE_TRY(json value, member(object, key, file, json::value_t::number_unsigned, "integer from 0"));
  auto number = value.get<std::uint64_t>();
  if (number > INT64_MAX) return fail(ErrorKind::failed, fmt::format("{}: \"{}\" is {}", file, key, number));
  return static_cast<std::int64_t>(number);
}

Result<std::string> string_member(const json& object, const char* key, const std::string& file) {
  YOKE_TRY(json value, member(object, key, file, json::value_t::string, "text"));
  return value.get<std::string>();
}

Result<json> object_member(const json& object, const char* key, const std::string& file) {
  return member(object, key, file, json::value_t::object, "object");
}

Result<json> array_member(const json& object, const char* key, const std::string& file) {
  return member(object, key, file, json::value_t::array, "list");
}

bool is_plain_name(std::string_view name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == name.npos && name.find('\0') == name.npos;
}

}  // namespace yoke
