#include "core/spec/value.h"

#include <fmt/format.h>

namespace yoke {
namespace {

constexpr std::size_t longest_shown = 80;

std::string toml_string(std::string_view text) {
  std::string out = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      out += fmt::format("\\u{:04X}", static_cast<unsigned char>(c));
    } else {
      out += c;
    }
  }
  return out + '"';
}

template <class... F>
struct overloaded : F... {
  using F::operator()...;
};
template <class... F>
overloaded(F...) -> overloaded<F...>;  // clang 14 does not deduce aggregates by itself

std::string number_text(double d) {
  std::string text = fmt::format("{}", d);  // the shortest text that reads back as d
  return text.find_first_of(".en") == std::string::npos ? text + ".0" : text;
}

std::string scalar_toml(const Scalar& scalar) {
  return std::visit(
      overloaded{[](bool b) { return std::string(b ? "true" : "false"); },
                 [](std::int64_t i) { return fmt::format("{}", i); }, [](double d) { return number_text(d); },
                 [](const std::string& s) { return toml_string(s); }},
      scalar);
}

std::optional<double> scalar_number(const Scalar& scalar) {
  if (const auto* i = std::get_if<std::int64_t>(&scalar)) return static_cast<double>(*i);
  if (const auto* d = std::get_if<double>(&scalar)) return *d;
  return std::nullopt;
}

}  // namespace

std::string to_toml(const Value& value) {
  return std::visit(overloaded{[](const Unusable& u) { return u.what; },
                               [](const std::vector<Scalar>& list) {
                                 std::string out = "[";
                                 for (const Scalar& item : list)
                                   out += (out.size() > 1 ? ", " : "") + scalar_toml(item);
                                 return out + "]";
                               },
                               [](const auto& scalar) { return scalar_toml(scalar); }},
                    value);
}

std::string clipped(std::string_view text) {
  if (text.size() <= longest_shown) return std::string(text);
  std::size_t cut = longest_shown;
  while (cut > 0 && (static_cast<unsigned char>(text[cut]) & 0xC0) == 0x80) --cut;  // not inside a UTF-8 character
  return std::string(text.substr(0, cut)) + "...";
}

std::string shown(const Value& value) { return clipped(to_toml(value)); }

bool is_utf8(std::string_view text) {
  constexpr std::uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};  // by length; below, a shorter form exists
  while (!text.empty()) {
    const auto lead = static_cast<unsigned char>(text[0]);
    const std::size_t length = lead < 0x80   ? 1
                               : lead < 0xC0 ? 0
                               : lead < 0xE0 ? 2
                               : lead < 0xF0 ? 3
                               : lead < 0xF8 ? 4
                                             : 0;
    if (length == 0 || length > text.size()) return false;
    std::uint32_t code = length == 1 ? lead : lead & (0xFFu >> (length + 1));
    for (std::size_t i = 1; i < length; ++i) {
      const auto c = static_cast<unsigned char>(text[i]);
      if ((c & 0xC0) != 0x80) return false;
      code = code << 6 | (c & 0x3Fu);
    }
    if (code < least[length] || code > 0x10FFFF || (code >= 0xD800 && code < 0xE000)) return false;
    text.remove_prefix(length);
  }
  return true;
}

std::optional<double> as_number(const Value& value) {
  if (const auto* i = std::get_if<std::int64_t>(&value)) return static_cast<double>(*i);
  if (const auto* d = std::get_if<double>(&value)) return *d;
  return std::nullopt;
}

std::optional<std::vector<std::string>> as_texts(const Value& value) {
  if (const auto* text = std::get_if<std::string>(&value)) return std::vector<std::string>{*text};
  const auto* list = std::get_if<std::vector<Scalar>>(&value);
  if (list == nullptr) return std::nullopt;
  std::vector<std::string> texts;
  for (const Scalar& item : *list) {
    const auto* text = std::get_if<std::string>(&item);
    if (text == nullptr) return std::nullopt;
    texts.push_back(*text);
  }
  return texts;
}

std::optional<std::vector<double>> as_numbers(const Value& value) {
  const auto* list = std::get_if<std::vector<Scalar>>(&value);
  if (list == nullptr) return std::nullopt;
  std::vector<double> numbers;
  for (const Scalar& item : *list) {
    auto number = scalar_number(item);
    if (!number) return std::nullopt;
    numbers.push_back(*number);
  }
  return numbers;
}

}  // namespace yoke
