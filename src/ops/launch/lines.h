// Cutting a stream of bytes into lines, and keeping the last ones.
#pragma once

#include <deque>
#include <string>
#include <string_view>
#include <vector>

namespace yoke {

// Bytes in, whole lines out, whatever the pieces in which they come. A carriage return ends a line as well: a progress
// bar then shows while it moves. A line without end is cut at max_line bytes.
class LineSplitter {
 public:
  static constexpr std::size_t max_line = 64 * 1024;

  std::vector<std::string> feed(std::string_view bytes);
  // At the end of the stream: the last line if nothing ended it.
  std::vector<std::string> flush();

 private:
  std::string partial_;
  bool after_return_ = false;
};

class LastLines {
 public:
  static constexpr std::size_t count = 20;

  void add(const std::string& line);
  std::vector<std::string> lines() const { return {lines_.begin(), lines_.end()}; }

 private:
  std::deque<std::string> lines_;
};

}  // namespace yoke
