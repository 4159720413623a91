// The table of keys of the run spec, each with how it is read from and written to RunSpec: what key_table() shows, and
// more. Inside this room only.
#pragma once

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "core/base/result.h"
#include "core/spec/run_spec.h"
#include "core/spec/value.h"

namespace yoke {

struct Row {
  KeyInfo info;
  std::vector<std::string> choices;  // of a string with few values; for "did you mean"
  // Nothing: there is no value to speak of (a shape that is not known, sizes of an automatic layout).
  std::function<std::optional<Value>(const RunSpec&)> get;
  // False if the value is not what info.type and info.range say; the spec may then be half changed.
  std::function<bool(RunSpec&, const Value&)> set;
};

// In the order of the reference page. A row's set may rely on the rows before it having been set: parallel.layout
// before sizes.
std::span<const Row> rows();
const Row* find_row(std::string_view key);

// "model", "train.optimizer", ...
bool is_section(std::string_view key);
// "train.optimizer.lr" -> {"train.optimizer", "lr"}.
std::pair<std::string, std::string> split_key(std::string_view key);

// `where` names the source: "recipes/x.toml:12".
Result<void> assign(RunSpec& spec, const Row& row, const Value& value, const std::string& where);
// The error for a key that is not in the table, with what was probably meant.
Error unknown_key(const std::string& key, const std::string& where);

}  // namespace yoke
