// The models that a run can name: data/models.json, which is embedded in the binary.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include "core/base/result.h"
#include "core/spec/model.h"

namespace yoke {

struct Preset {
  std::string name;
  Model shape;
  std::string source;  // where the numbers are from
  std::string date;    // when they were taken from there, YYYY-MM-DD
};

// In the order of the file; lives as long as the program.
std::span<const Preset> presets();

// An error of kind usage says which name was meant, or lists them.
Result<const Preset*> find_preset(std::string_view name);

// The text of data/models.json.
extern const char* const models_json;

}  // namespace yoke
