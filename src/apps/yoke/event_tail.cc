#include "apps/yoke/event_tail.h"

#include <filesystem>
#include <fstream>

namespace yoke {

EventTail::EventTail(std::string path, bool from_start) : path_(std::move(path)) {
  std::error_code absent;
  auto size = std::filesystem::file_size(path_, absent);
  if (!from_start && !absent) position_ = static_cast<std::int64_t>(size);
}

std::vector<Record> EventTail::poll() {
  std::vector<Record> records;
  std::ifstream file(path_, std::ios::binary);
  if (!file.seekg(position_)) return records;
  std::string line;
  while (std::getline(file, line) && !file.eof()) {  // at the end of the file: the line is still being written
    position_ += static_cast<std::int64_t>(line.size()) + 1;
    if (auto record = record_from_json_line(line)) records.push_back(std::move(*record));
  }
  return records;
}

}  // namespace yoke
