// TOML text as flat keys and values of the run spec, each with its line. Inside this room only.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "core/spec/value.h"

namespace yoke {

struct KeyValue {
  std::string key;  // dotted; tables are opened only where the run spec has a section of that name
  Value value;
  std::int64_t line = 0;  // from 1
};

// In the order of the lines. Errors of syntax are of kind usage and name the line.
Result<std::vector<KeyValue>> read_toml(std::string_view text, const std::string& file);

// One value: 5, "text", ["a", "b"]. What is not TOML is a plain string.
Value read_toml_value(std::string_view text);

}  // namespace yoke
