#include "ops/launch/lines.h"

#include <algorithm>
#include <utility>

namespace yoke {

std::vector<std::string> LineSplitter::feed(std::string_view bytes) {
  std::vector<std::string> lines;
  while (!bytes.empty()) {
    std::size_t at = bytes.find_first_of("\r\n");
    std::size_t room = max_line - partial_.size();
    if (std::min(at, bytes.size()) > room) {
      lines.push_back(std::exchange(partial_, {}) + std::string(bytes.substr(0, room)));
      bytes.remove_prefix(room);
      continue;
    }
    partial_.append(bytes.substr(0, at));
    if (at == std::string_view::npos) break;
    // "\r\n" is one end, and a bar that begins with "\r" has no line before it.
    bool line = !partial_.empty() || (bytes[at] == '\n' && !after_return_);
    after_return_ = bytes[at] == '\r' && line;
    if (line) lines.push_back(std::exchange(partial_, {}));
    bytes.remove_prefix(at + 1);
  }
  return lines;
}

std::vector<std::string> LineSplitter::flush() {
  after_return_ = false;
  if (partial_.empty()) return {};
  return {std::exchange(partial_, {})};
}

void LastLines::add(const std::string& line) {
  lines_.push_back(line);
  if (lines_.size() > count) lines_.pop_front();
}

}  // namespace yoke
