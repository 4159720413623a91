#include "apps/yoke/messages.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace yoke {
namespace {

bool is_set(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr && *value != '\0';
}

void line(std::string_view word, Colour colour, std::string_view text) {
  fmt::print(stderr, "{} {}\n", coloured(word, colour, STDERR_FILENO), text);
}

}  // namespace

int report_error(const Error& error) {
  line("error:", Colour::red, error.what);
  if (!error.hint.empty()) line("hint:", Colour::cyan, error.hint);
  return exit_code(error.kind);
}

void note(std::string_view text) { line("note:", Colour::cyan, text); }
void warn(std::string_view text) { line("warning:", Colour::yellow, text); }

bool is_terminal(int fd) { return ::isatty(fd) != 0; }

bool colour_wanted(int fd) {
  if (is_set("NO_COLOR")) return false;
  return is_set("FORCE_COLOR") || is_terminal(fd);
}

std::string coloured(std::string_view text, Colour colour, int fd) {
  if (!colour_wanted(fd)) return std::string(text);
  return fmt::format("\033[{}m{}\033[0m", static_cast<int>(colour), text);
}

int terminal_width(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

}  // namespace yoke
