// The two clocks: one that only goes forward, for durations and deadlines, and the time of day, for stamps.
#pragma once

#include <cstdint>
#include <string>

namespace yoke {

std::int64_t monotonic_ns();
std::int64_t unix_ns();

// UTC as "2026-01-31T23:59:59Z"; the time is in Unix nanoseconds.
std::string utc_text(std::int64_t time_ns);

}  // namespace yoke
