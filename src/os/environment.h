// Environment variables as a value: read once, changed as a map, handed to a child.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace yoke {

using Environment = std::map<std::string, std::string, std::less<>>;

Environment current_environment();

// A variable of an environment; nothing if it is not set.
std::optional<std::string> find_variable(const Environment& environment, std::string_view name);

// "NAME=value" lines, sorted by name.
std::vector<std::string> environment_lines(const Environment& environment);

}  // namespace yoke
