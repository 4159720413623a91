#include "core/base/text.h"

#include <gtest/gtest.h>

namespace yoke {
namespace {

TEST(Text, DidYouMean) {
  std::vector<std::string> keys{"steps", "global_batch", "micro_batch", "seed"};
  EXPECT_EQ(did_you_mean("step", keys), "steps");
  EXPECT_EQ(did_you_mean("golbal_batch", keys), "global_batch");
  EXPECT_EQ(did_you_mean("zebra", keys), std::nullopt);
  EXPECT_EQ(did_you_mean("x", {}), std::nullopt);
}

TEST(Text, SplitJoinTrim) {
  EXPECT_EQ(split("a,b,,c", ','), (std::vector<std::string>{"a", "b", "", "c"}));
  EXPECT_EQ(split("", ','), (std::vector<std::string>{""}));
  std::vector<std::string> pieces{"a", "b"};
  EXPECT_EQ(join(pieces, ", "), "a, b");
  EXPECT_EQ(trim("  a b\n"), "a b");
  EXPECT_EQ(trim(" \t"), "");
}

TEST(Text, Format) {
  EXPECT_EQ(format_bytes(512), "512 B");
  EXPECT_EQ(format_bytes(1536.0 * 1024 * 1024), "1.50 GiB");
  EXPECT_EQ(format_bytes(1023.9 * 1024), "1.00 MiB");
  EXPECT_EQ(format_count(857216), "857K");
  EXPECT_EQ(format_count(8.03e9), "8.03B");
  EXPECT_EQ(format_seconds(3725), "1h 02m");
  EXPECT_EQ(format_seconds(200), "3m 20s");
  EXPECT_EQ(format_seconds(0.85), "850 ms");
  EXPECT_EQ(format_thousands(1234567), "1,234,567");
  EXPECT_EQ(format_thousands(-123), "-123");
  EXPECT_EQ(format_thousands(999), "999");
}

TEST(Text, Numbers) {
  EXPECT_EQ(parse_integer("42"), 42);
  EXPECT_EQ(parse_integer("42x"), std::nullopt);
  EXPECT_EQ(parse_integer(""), std::nullopt);
  EXPECT_EQ(parse_integer("99999999999999999999"), std::nullopt);
  EXPECT_EQ(parse_number("1e-4"), 1e-4);
}

}  // namespace
}  // namespace yoke
