#include "core/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>

namespace yoke {
namespace {

// Levenshtein's distance with a neighbouring swap counted as one edit (optimal string alignment).
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before(b.size() + 1), last(b.size() + 1), now(b.size() + 1);
  std::iota(last.begin(), last.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    now[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, last[j - 1] + (a[i - 1] != b[j - 1])});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) now[j] = std::min(now[j], before[j - 2] + 1);
    }
    std::swap(before, last);
    std::swap(last, now);
  }
  return last[b.size()];
}

}  // namespace

std::optional<std::string> did_you_mean(std::string_view word, std::span<const std::string> candidates) {
  const std::string* best = nullptr;
  std::size_t best_distance = 0;
  for (const std::string& candidate : candidates) {
    std::size_t distance = edit_distance(word, candidate);
    if (best == nullptr || distance < best_distance) best = &candidate, best_distance = distance;
  }
  if (best == nullptr || best_distance > std::max<std::size_t>(1, word.size() / 3)) return std::nullopt;
  return *best;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> pieces;
  while (true) {
    std::size_t at = text.find(separator);
    pieces.emplace_back(text.substr(0, at));
    if (at == std::string_view::npos) return pieces;
    text.remove_prefix(at + 1);
  }
}

std::string join(std::span<const std::string> pieces, std::string_view separator) {
  return fmt::format("{}", fmt::join(pieces, separator));
}

std::string_view trim(std::string_view text) {
  constexpr std::string_view blank = " \t\r\n\f\v";
  std::size_t first = text.find_first_not_of(blank);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(blank) - first + 1);
}

namespace {

struct Scale {
  double unit;
  const char* name;
};

// The value in the largest scale that it reaches, with three digits.
std::string scaled(double value, std::span<const Scale> scales, const char* base) {
  for (const Scale& s : scales) {
    double shown = value / s.unit;
    if (std::abs(shown) >= 0.9995) {
      int digits = std::abs(shown) < 9.995 ? 2 : std::abs(shown) < 99.95 ? 1 : 0;
      return fmt::format("{:.{}f}{}", shown, digits, s.name);
    }
  }
  return fmt::format("{:.0f}{}", value, base);
}

}  // namespace

std::string format_bytes(double bytes) {
  static constexpr Scale scales[] = {
      {0x1p50, " PiB"}, {0x1p40, " TiB"}, {0x1p30, " GiB"}, {0x1p20, " MiB"}, {0x1p10, " KiB"}};
  return scaled(bytes, scales, " B");
}

std::string format_count(double count) {
  static constexpr Scale scales[] = {{1e12, "T"}, {1e9, "B"}, {1e6, "M"}, {1e3, "K"}};
  return scaled(count, scales, "");
}

std::string format_seconds(double seconds) {
  if (seconds < 0) return "-" + format_seconds(-seconds);
  if (seconds < 1e-3) return fmt::format("{:.0f} us", seconds * 1e6);
  if (seconds < 1) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 60) return fmt::format("{:.1f} s", seconds);
  auto whole = static_cast<std::int64_t>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{}m {:02d}s", whole / 60, whole % 60);
  if (whole < 86400) return fmt::format("{}h {:02d}m", whole / 3600, whole / 60 % 60);
  return fmt::format("{}d {:02d}h", whole / 86400, whole / 3600 % 24);
}

std::string format_thousands(std::int64_t value) {
  std::string digits = std::to_string(value);
  for (auto at = static_cast<std::ptrdiff_t>(digits.size()) - 3; at > (value < 0 ? 1 : 0); at -= 3)
    digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}

std::optional<std::int64_t> parse_integer(std::string_view text) {
  std::int64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

std::optional<double> parse_number(std::string_view text) {
  double value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

}  // namespace yoke
