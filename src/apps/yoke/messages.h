// Talking to people: errors and notes on stderr, colour on terminals only (NO_COLOR and FORCE_COLOR decide otherwise).
#pragma once

#include <string>
#include <string_view>

#include "core/base/result.h"

namespace yoke {

// Prints "error: ..." and "hint: ..."; returns the exit code.
int report_error(const Error& error);
void note(std::string_view text);
void warn(std::string_view text);

enum class Colour { red = 31, green = 32, yellow = 33, blue = 34, magenta = 35, cyan = 36 };

bool colour_wanted(int fd);
// The text in colour if that is wanted there.
std::string coloured(std::string_view text, Colour colour, int fd);
bool is_terminal(int fd);
// In characters; 80 if it is not known.
int terminal_width(int fd);

}  // namespace yoke
