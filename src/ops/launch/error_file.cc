#include "ops/launch/error_file.h"

#include <nlohmann/json.hpp>

namespace yoke {

std::string message_of_error_file(std::string_view json) {
  nlohmann::json root = nlohmann::json::parse(json, nullptr, false);
  for (int depth = 0; depth < 2 && root.is_object() && root.contains("message"); ++depth) {
    nlohmann::json inner = root["message"];
    root = std::move(inner);
  }
  return root.is_string() ? root.get<std::string>() : std::string();
}

}  // namespace yoke
