#include "os/clock.h"

#include <fmt/format.h>

#include <ctime>

namespace yoke {
namespace {

std::int64_t now(clockid_t clock) {
  timespec t{};
  ::clock_gettime(clock, &t);
  return std::int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

}  // namespace

std::int64_t monotonic_ns() { return now(CLOCK_MONOTONIC); }
std::int64_t unix_ns() { return now(CLOCK_REALTIME); }

std::string utc_text(std::int64_t time_ns) {
  std::time_t seconds = time_ns / 1'000'000'000;
  std::tm t{};
  ::gmtime_r(&seconds, &t);
  return fmt::format("{:04}-{:02}-{:02}T{:02}:{:02}:{:02}Z", t.tm_year + 1900, t.tm_mon + 1, t.tm_mday, t.tm_hour,
                     t.tm_min, t.tm_sec);
}

}  // namespace yoke
