// A value of the run spec on its way between TOML, JSON and a field of RunSpec.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace yoke {

// What no key takes: a table, a date, null, a list in a list. `what` says which.
struct Unusable {
  std::string what;
  bool operator==(const Unusable&) const = default;
};

using Scalar = std::variant<bool, std::int64_t, double, std::string>;
using Value = std::variant<Unusable, bool, std::int64_t, double, std::string, std::vector<Scalar>>;

// As TOML: 5, "text", ["a", "b"].
std::string to_toml(const Value& value);

// For messages: as TOML with long text cut, "a table" for what is unusable.
std::string shown(const Value& value);
std::string clipped(std::string_view text);

// JSON, and so run.json, holds no other text.
bool is_utf8(std::string_view text);

// Integers count as numbers.
std::optional<double> as_number(const Value& value);
// A single text counts as a list of one.
std::optional<std::vector<std::string>> as_texts(const Value& value);
// All of them numbers.
std::optional<std::vector<double>> as_numbers(const Value& value);

}  // namespace yoke
