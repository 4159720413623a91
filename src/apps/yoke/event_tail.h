// Follows a telemetry file while a rank appends to it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/telemetry/record.h"

namespace yoke {

class EventTail {
 public:
  // from_start: also what is in the file already. The file need not be there yet.
  EventTail(std::string path, bool from_start);

  // The records whose lines were completed since the last call. Lines that make no sense are left to the report to
  // name.
  std::vector<Record> poll();

 private:
  std::string path_;
  std::int64_t position_ = 0;  // of the first byte that is not part of a whole line read
};

}  // namespace yoke
