#include "os/clock.h"

#include <gtest/gtest.h>

#include <chrono>

namespace yoke {
namespace {

TEST(Clock, MonotonicGoesForward) {
  std::int64_t before = monotonic_ns();
  EXPECT_LE(before, monotonic_ns());
}

TEST(Clock, UnixTimeIsThatOfTheSystem) {
  auto system = [] { return std::chrono::nanoseconds(std::chrono::system_clock::now().time_since_epoch()).count(); };
  std::int64_t before = system(), now = unix_ns(), after = system();
  EXPECT_LE(before, now);
  EXPECT_LE(now, after);
}

TEST(Clock, UtcText) {  // references from `date -u -d @N`
  EXPECT_EQ(utc_text(0), "1970-01-01T00:00:00Z");
  EXPECT_EQ(utc_text(1'709'210'096'999'999'999), "2024-02-29T12:34:56Z");
}

}  // namespace
}  // namespace yoke
