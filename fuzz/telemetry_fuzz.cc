// Any bytes as a telemetry line: no crash, and whatever is accepted is written and read back as the same line.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "core/telemetry/record.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  auto record = yoke::record_from_json_line({reinterpret_cast<const char*>(data), size});
  if (!record) return 0;
  std::string line = yoke::to_json_line(*record);
  auto back = yoke::record_from_json_line(line);
  if (!back || yoke::to_json_line(*back) != line) std::abort();
  return 0;
}
