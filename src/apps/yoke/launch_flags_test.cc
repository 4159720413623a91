#include "apps/yoke/launch_flags.h"

#include <gtest/gtest.h>

namespace yoke {
namespace {

using Words = std::vector<std::string>;

TEST(LaunchFlags, Ranks) {
  EXPECT_EQ(resolve_ranks("3", 8, 2).value(), 3);
  EXPECT_EQ(resolve_ranks("auto", 8, 2).value(), 2);
  EXPECT_EQ(resolve_ranks("auto", 8, 0).value(), 8);
  EXPECT_EQ(resolve_ranks("cpu", 8, 2).value(), 8);
  EXPECT_EQ(resolve_ranks("gpu", 8, 2).value(), 2);
  EXPECT_EQ(resolve_ranks("gpu", 8, 0).error().kind, ErrorKind::environment);
  for (const char* wrong : {"0", "-1", "two", "", "99999", "2x"}) {
    EXPECT_EQ(resolve_ranks(wrong, 8, 2).error().kind, ErrorKind::usage) << wrong;
  }
}

TEST(LaunchFlags, Nodes) {
  EXPECT_TRUE(check_nodes("1"));
  EXPECT_TRUE(check_nodes("1:1"));
  EXPECT_EQ(check_nodes("2").error().kind, ErrorKind::usage);
  EXPECT_FALSE(check_nodes("1:2"));
}

TEST(LaunchFlags, Streams) {
  EXPECT_EQ(resolve_streams("3", 2, "-r").value(), (std::vector<int>{3, 3}));
  EXPECT_EQ(resolve_streams("0:1,2:3", 3, "-r").value(), (std::vector<int>{1, 0, 3}));
  for (const char* wrong : {"4", "", "x", "0:4", "3:1", "0:1:2", "0:1,"}) {
    auto result = resolve_streams(wrong, 3, "--tee");
    ASSERT_FALSE(result) << wrong;
    EXPECT_EQ(result.error().what, std::string("--tee is ") + wrong);
  }
}

TEST(LaunchFlags, RankFilter) {
  EXPECT_EQ(resolve_rank_filter("", 2).value(), (std::vector<bool>{true, true}));
  EXPECT_EQ(resolve_rank_filter("2, 0", 3).value(), (std::vector<bool>{true, false, true}));
  EXPECT_FALSE(resolve_rank_filter("3", 3));
  EXPECT_FALSE(resolve_rank_filter("a", 3));
}

TEST(LaunchFlags, Command) {
  EXPECT_EQ(rank_command({{"train.py", "--lr", "1"}}, "python3"), (Words{"python3", "train.py", "--lr", "1"}));
  EXPECT_EQ(rank_command({{"pkg.main", "x"}, true}, "py"), (Words{"py", "-m", "pkg.main", "x"}));
  EXPECT_EQ(rank_command({{"./trainer", "a.py"}}, "python3"), (Words{"./trainer", "a.py"}));
  EXPECT_EQ(rank_command({{"train.py"}, false, true}, "python3"), Words{"train.py"});
}

}  // namespace
}  // namespace yoke
