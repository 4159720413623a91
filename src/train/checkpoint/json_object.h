// Reading JSON from files that may hold anything. Only for this room's .cc files: nlohmann's header is heavy.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "core/base/result.h"

namespace yoke {

// The object that the text is. Errors (kind failed, with the file's name): not JSON, not an object, a key twice, or
// deeper than anything that we write (nlohmann's copies and writer recurse).
Result<nlohmann::json> parse_json_object(std::string_view text, const std::string& file, int deepest = 64);

// The member, if it is there and of that kind; an error that names file and key otherwise.
Result<std::int64_t> integer_member(const nlohmann::json& object, const char* key, const std::string& file);  // >= 0
Result<std::string> string_member(const nlohmann::json& object, const char* key, const std::string& file);
Result<nlohmann::json> object_member(const nlohmann::json& object, const char* key, const std::string& file);
Result<nlohmann::json> array_member(const nlohmann::json& object, const char* key, const std::string& file);

// Whether the name is of something directly in a folder: no path out of it.
bool is_plain_name(std::string_view name);

}  // namespace yoke
