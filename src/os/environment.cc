#include "os/environment.h"

#include <unistd.h>

namespace yoke {

Environment current_environment() {
  Environment result;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    std::string_view line = *entry;
    std::size_t equals = line.find('=');
    // The first of two equal names wins, as with getenv.
    if (equals != std::string_view::npos) result.emplace(line.substr(0, equals), line.substr(equals + 1));
  }
  return result;
}

std::optional<std::string> find_variable(const Environment& environment, std::string_view name) {
  auto found = environment.find(name);
  if (found == environment.end()) return std::nullopt;
  return found->second;
}

std::vector<std::string> environment_lines(const Environment& environment) {
  std::vector<std::string> lines;
  lines.reserve(environment.size());
  for (const auto& [name, value] : environment) lines.push_back(name + "=" + value);
  return lines;
}

}  // namespace yoke
