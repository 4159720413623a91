// Small helpers for text that people read and write.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace yoke {

// The candidate nearest to word by edit distance, if it is near enough to be what was meant.
std::optional<std::string> did_you_mean(std::string_view word, std::span<const std::string> candidates);

// The pieces between separators; an empty text gives one empty piece.
std::vector<std::string> split(std::string_view text, char separator);
std::string join(std::span<const std::string> pieces, std::string_view separator);
// Without white space at both ends.
std::string_view trim(std::string_view text);

// "1.50 GiB", "12.0 MiB", "512 B": binary units, as memory is shown.
std::string format_bytes(double bytes);
// "12.3M", "857K", "8.03B": counts of parameters or tokens.
std::string format_count(double count);
// "1h 02m", "3m 20s", "12.3 s", "850 ms", "12 us".
std::string format_seconds(double seconds);
// 1234567 -> "1,234,567".
std::string format_thousands(std::int64_t value);

// The whole text as a number; nothing if any of it is not part of the number.
std::optional<std::int64_t> parse_integer(std::string_view text);
std::optional<double> parse_number(std::string_view text);

}  // namespace yoke
