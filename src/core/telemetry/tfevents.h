// TensorBoard's event files: pure text in, bytes out; who appends them to a file is the caller's affair.
//
// A file is a sequence of framed records:
//
//   length   8 bytes, little-endian, of the payload
//   check    4 bytes, masked CRC-32C of the length's bytes
//   payload  an Event in protobuf's wire format
//   check    4 bytes, masked CRC-32C of the payload
//
// The mask is ((crc >> 15) | (crc << 17)) + 0xa282ead8. Of Event these fields are used: 1 wall_time (double, Unix
// seconds), 2 step (varint), 3 file_version, 5 summary; a summary holds values of field 1 tag and field 2 simple_value
// (float).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/telemetry/record.h"

namespace yoke {

struct Scalar {
  std::string tag;
  double value = 0;  // kept as a 32-bit float in the file
  bool operator==(const Scalar&) const = default;
};

// What every file begins with. The file must be called events.out.tfevents.<anything> for TensorBoard to find it.
std::string tfevents_header(double wall_time);
// One record with all these values at one step.
std::string tfevents_scalars(double wall_time, std::int64_t step, std::span<const Scalar> scalars);

// The record as TensorBoard shows it: step and validation events, at the number of steps done; empty for other events.
std::string tfevents_record(const Record& record);

std::uint32_t crc32c(std::string_view bytes);

}  // namespace yoke
