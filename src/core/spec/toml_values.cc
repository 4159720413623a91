#include "core/spec/toml_values.h"

#include <fmt/format.h>
#include <toml++/toml.h>

#include <algorithm>

#include "core/spec/keys.h"

namespace yoke {
namespace {

constexpr std::size_t longest_text = 1 << 20;
constexpr std::size_t most_dots = 1000;

// Dots outside strings and comments. Each may open a table in a table, and the parser's tables are destroyed
// recursively, so a text with very many of them would overflow the stack.
std::size_t dots_outside_strings(std::string_view text) {
  std::size_t dots = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (c == '.') ++dots;
    if (c == '#') i = std::min(text.find('\n', i), text.size());
    if (c != '"' && c != '\'') continue;
    const std::string_view three = text.substr(i, 3);
    const bool many_lines = three.size() == 3 && three[1] == c && three[2] == c;
    for (i += many_lines ? 3 : 1; i < text.size(); ++i) {
      if (text[i] == '\\' && c == '"') {
        ++i;
      } else if (!many_lines && (text[i] == c || text[i] == '\n')) {
        break;
      } else if (many_lines && text.substr(i, 3) == three) {
        i += 2;
        for (int extra = 0; extra < 2 && i + 1 < text.size() && text[i + 1] == c; ++extra) ++i;  // """a""""" holds a""
        break;
      }
    }
  }
  return dots;
}

template <class Out>
Out scalar_of(const toml::node& node) {
  if (const auto* b = node.as_boolean()) return b->get();
  if (const auto* i = node.as_integer()) return std::int64_t{i->get()};
  if (const auto* d = node.as_floating_point()) return d->get();
  return node.as_string()->get();
}

bool is_scalar(const toml::node& node) {
  return node.is_boolean() || node.is_integer() || node.is_floating_point() || node.is_string();
}

Value value_of(const toml::node& node) {
  if (is_scalar(node)) return scalar_of<Value>(node);
  if (node.is_table()) return Unusable{"a table"};
  if (!node.is_array()) return Unusable{"a date or time"};
  std::vector<Scalar> list;
  for (const toml::node& item : *node.as_array()) {
    if (!is_scalar(item)) return Unusable{"a list of more than plain values"};
    list.push_back(scalar_of<Scalar>(item));
  }
  return list;
}

void flatten(const toml::table& table, const std::string& section, std::vector<KeyValue>& out) {
  for (const auto& [name, node] : table) {
    // A dot inside a quoted name does not lead into a section.
    std::string key =
        name.str().find('.') == std::string_view::npos ? std::string(name.str()) : fmt::format("\"{}\"", name.str());
    if (!section.empty()) key = section + "." + key;
    if (node.is_table() && is_section(key)) {
      flatten(*node.as_table(), key, out);
    } else {
      out.push_back({std::move(key), value_of(node), static_cast<std::int64_t>(name.source().begin.line)});
    }
  }
}

Error syntax_error(const toml::parse_error& error, const std::string& file) {
  const std::string_view why = error.description();
  const bool twice = why.find("redefin") != std::string_view::npos || why.find("duplicate") != std::string_view::npos;
  return {ErrorKind::usage, fmt::format("{}:{}: {}", file, error.source().begin.line, clipped(why)),
          twice
              ? "give each key once, and each section once"
              : "text stands in quotes, lists in [ ], sections in [name] on a line of their own; see https://toml.io"};
}

}  // namespace

Result<std::vector<KeyValue>> read_toml(std::string_view text, const std::string& file) {
  if (text.size() > longest_text) {
    return fail(ErrorKind::usage, fmt::format("{}: {} bytes of text", file, text.size()),
                "a run spec is a small TOML file");
  }
  if (std::size_t dots = dots_outside_strings(text); dots > most_dots) {
    return fail(ErrorKind::usage, fmt::format("{}: {} dots outside of strings", file, dots),
                "a run spec is a small TOML file");
  }
  try {
    std::vector<KeyValue> values;
    flatten(toml::parse(text, file), "", values);
    std::stable_sort(values.begin(), values.end(),
                     [](const KeyValue& a, const KeyValue& b) { return a.line < b.line; });
    return values;
  } catch (const toml::parse_error& error) {
    return tl::unexpected(syntax_error(error, file));
  }
}

Value read_toml_value(std::string_view text) {
  const bool one_line = text.find_first_of("\r\n") == std::string_view::npos;
  if (!one_line || text.size() > longest_text || dots_outside_strings(text) > most_dots) return std::string(text);
  try {
    const toml::table table = toml::parse(fmt::format("x = {}", text));
    return value_of(*table.get("x"));
  } catch (const toml::parse_error&) {
    return std::string(text);
  }
}

}  // namespace yoke
