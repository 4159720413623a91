#include "core/spec/keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/base/text.h"

namespace yoke {
namespace {

// Nobody's typing error is longer; comparing very long words with every key would take minutes.
constexpr std::size_t longest_typo = 64;

std::string expected(const Row& row) {
  const std::string& type = row.info.type;
  const char* article = type.starts_with("one of") ? "" : type.starts_with("integer") ? "an " : "a ";
  return fmt::format("{}{}{}{}", article, type, row.info.range.empty() ? "" : " ", row.info.range);
}

std::string value_hint(const Row& row, const Value& value) {
  const auto* text = std::get_if<std::string>(&value);
  if (text != nullptr && text->size() <= longest_typo) {
    if (auto near = did_you_mean(*text, row.choices)) return fmt::format("did you mean \"{}\"?", *near);
  }
  const std::string& usual = row.info.default_value;
  return fmt::format("{}: {}{}", row.info.key, row.info.meaning,
                     usual.empty() ? "" : fmt::format("; default {}", usual));
}

// The last parts of the keys directly in this section.
std::vector<std::string> leaves_of(std::string_view section) {
  std::vector<std::string> leaves;
  for (const Row& row : rows()) {
    auto [in, leaf] = split_key(row.info.key);
    if (in == section) leaves.push_back(leaf);
  }
  return leaves;
}

std::vector<std::string> sections() {
  std::vector<std::string> all;
  for (const Row& row : rows()) {
    auto section = split_key(row.info.key).first;
    if (!section.empty() && std::find(all.begin(), all.end(), section) == all.end()) all.push_back(section);
  }
  return all;
}

std::string dotted(std::string_view section, std::string_view leaf) {
  return section.empty() ? std::string(leaf) : fmt::format("{}.{}", section, leaf);
}

// What was meant by a key that is not there: the same name in another section; a near name in its own section; a near
// section; a near name elsewhere.
std::optional<std::string> meant(const std::string& section, const std::string& leaf) {
  if (leaf.size() > longest_typo || section.size() > longest_typo) return std::nullopt;
  for (const Row& row : rows())
    if (split_key(row.info.key).second == leaf) return row.info.key;
  if (auto near = did_you_mean(leaf, leaves_of(section))) return dotted(section, *near);
  const auto all_sections = sections();
  if (auto near = did_you_mean(dotted(section, leaf), all_sections)) return near;
  if (auto near_section = did_you_mean(section, all_sections)) {
    if (auto near = did_you_mean(leaf, leaves_of(*near_section))) return dotted(*near_section, *near);
  }
  std::vector<std::string> everywhere;
  for (const Row& row : rows()) everywhere.push_back(split_key(row.info.key).second);
  auto near = did_you_mean(leaf, everywhere);
  if (!near) return std::nullopt;
  for (const Row& row : rows())
    if (split_key(row.info.key).second == *near) return row.info.key;
  return std::nullopt;
}

}  // namespace

const Row* find_row(std::string_view key) {
  static const auto by_key = [] {
    std::map<std::string, const Row*, std::less<>> all;
    for (const Row& row : rows()) all[row.info.key] = &row;
    return all;
  }();
  auto found = by_key.find(key);
  return found == by_key.end() ? nullptr : found->second;
}

bool is_section(std::string_view key) {
  static const auto all = sections();
  return std::find(all.begin(), all.end(), key) != all.end();
}

std::pair<std::string, std::string> split_key(std::string_view key) {
  const std::size_t dot = key.rfind('.');
  if (dot == std::string_view::npos) return {"", std::string(key)};
  return {std::string(key.substr(0, dot)), std::string(key.substr(dot + 1))};
}

Result<void> assign(RunSpec& spec, const Row& row, const Value& value, const std::string& where) {
  if (row.set(spec, value)) return {};
  return fail(ErrorKind::usage, fmt::format("{}: {} is {}, not {}", where, row.info.key, shown(value), expected(row)),
              value_hint(row, value));
}

Error unknown_key(const std::string& key, const std::string& where) {
  Error error{ErrorKind::usage, fmt::format("{}: {} is not a key", where, clipped(key)), ""};
  if (is_section(key)) {
    error.what = fmt::format("{}: {} is a section, not a value", where, key);
    error.hint = fmt::format("its keys are {}", join(leaves_of(key), ", "));
    return error;
  }
  auto [section, leaf] = split_key(key);
  if (auto near = meant(section, leaf)) {
    error.hint = fmt::format("did you mean {}?", *near);
  } else if (is_section(section)) {
    error.hint = fmt::format("the keys of [{}] are {}", section, join(leaves_of(section), ", "));
  } else {
    error.hint = fmt::format("the sections are {}", join(sections(), ", "));
  }
  return error;
}

std::span<const KeyInfo> key_table() {
  static const auto table = [] {
    std::vector<KeyInfo> all;
    for (const Row& row : rows()) all.push_back(row.info);
    return all;
  }();
  return table;
}

std::string environment_name(std::string_view key) {
  std::string variable = "YOKE_";
  for (char c : key) variable += c == '.' ? '_' : static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  return variable;
}

}  // namespace yoke
