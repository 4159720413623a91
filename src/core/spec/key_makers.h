// How the rows of the table of keys are made, one function for each type of value. Inside this room only.
//
// A field is a function that gives the field of a RunSpec, readable and writable: YOKE_FIELD(train.steps).
#pragma once

#include <fmt/format.h>

#include <array>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/spec/keys.h"

#define YOKE_FIELD(member) \
  [](auto& s) -> auto& { return s.member; }

namespace yoke {

inline Row make(const char* key, std::string type, std::string range, const char* meaning) {
  Row row;
  row.info.key = key;
  row.info.type = std::move(type);
  row.info.range = std::move(range);
  row.info.meaning = meaning;
  return row;
}

// `automatic`: the text "auto" stands for 0 in the struct.
template <class Field>
Row integer(const char* key, Field field, std::int64_t least, std::int64_t most, const char* meaning,
            bool automatic = false) {
  Row row =
      make(key, automatic ? "integer or \"auto\"" : "integer", fmt::format("from {} to {}", least, most), meaning);
  row.get = [=](const RunSpec& s) -> std::optional<Value> {
    const auto value = static_cast<std::int64_t>(field(s));
    if (automatic && value == 0) return Value(std::string("auto"));
    return Value(value);
  };
  row.set = [=](RunSpec& s, const Value& value) {
    using T = std::remove_reference_t<decltype(field(s))>;
    const auto* text = std::get_if<std::string>(&value);
    if (automatic && text != nullptr && *text == "auto") {
      field(s) = 0;
      return true;
    }
    const auto* number = std::get_if<std::int64_t>(&value);
    if (number == nullptr || ((*number < least || *number > most) && !(automatic && *number == 0))) return false;
    field(s) = static_cast<T>(*number);
    return true;
  };
  return row;
}

template <class Field>
Row number(const char* key, Field field, double least, double most, const char* meaning) {
  Row row = make(key, "number", fmt::format("from {} to {}", least, most), meaning);
  row.get = [=](const RunSpec& s) -> std::optional<Value> { return Value(field(s)); };
  row.set = [=](RunSpec& s, const Value& value) {
    auto n = as_number(value);
    if (!n || !(*n >= least && *n <= most)) return false;  // not a number at all (nan) is outside, too
    field(s) = *n;
    return true;
  };
  return row;
}

template <class Field>
Row boolean(const char* key, Field field, const char* meaning) {
  Row row = make(key, "boolean", "", meaning);
  row.get = [=](const RunSpec& s) -> std::optional<Value> { return Value(field(s)); };
  row.set = [=](RunSpec& s, const Value& value) {
    const auto* b = std::get_if<bool>(&value);
    if (b != nullptr) field(s) = *b;
    return b != nullptr;
  };
  return row;
}

inline bool no_control(const std::string& text) {
  for (char c : text)
    if (static_cast<unsigned char>(c) < 0x20) return false;
  return true;
}

// Empty is allowed where the default is empty: it means that the key is not given.
template <class Field>
Row text(const char* key, Field field, const char* meaning) {
  const bool may_be_empty = field(static_cast<const RunSpec&>(RunSpec())).empty();
  Row row = make(key, "string", may_be_empty ? "" : "not empty", meaning);
  row.get = [=](const RunSpec& s) -> std::optional<Value> {
    if (may_be_empty && field(s).empty()) return std::nullopt;
    return Value(field(s));
  };
  row.set = [=](RunSpec& s, const Value& value) {
    const auto* t = std::get_if<std::string>(&value);
    if (t == nullptr || !no_control(*t) || (t->empty() && !may_be_empty)) return false;
    field(s) = *t;
    return true;
  };
  return row;
}

template <class Field, std::size_t N>
Row choice(const char* key, Field field, const std::array<const char*, N>& names, const char* meaning) {
  Row row = make(key, fmt::format("one of {}", fmt::join(names, " | ")), "", meaning);
  row.choices.assign(names.begin(), names.end());
  row.get = [=](const RunSpec& s) -> std::optional<Value> {
    return Value(std::string(names[static_cast<std::size_t>(field(s))]));
  };
  row.set = [=](RunSpec& s, const Value& value) {
    using T = std::remove_reference_t<decltype(field(s))>;
    const auto* t = std::get_if<std::string>(&value);
    for (std::size_t i = 0; t != nullptr && i < N; ++i) {
      if (*t != names[i]) continue;
      field(s) = static_cast<T>(i);
      return true;
    }
    return false;
  };
  return row;
}

using Has = bool (*)(const RunSpec&);

inline Row only_if(Has has, Row row) {
  row.get = [has, get = row.get](const RunSpec& s) { return has(s) ? get(s) : std::nullopt; };
  return row;
}

inline Row required(Row row) {
  row.info.required = true;
  return row;
}

}  // namespace yoke
