#include "os/environment.h"

#include <gtest/gtest.h>

#include <cstdlib>

namespace yoke {
namespace {

TEST(Environment, Current) {
  ::setenv("YOKE_TEST_VARIABLE", "a=b", 1);
  Environment e = current_environment();
  ::unsetenv("YOKE_TEST_VARIABLE");
  EXPECT_EQ(find_variable(e, "YOKE_TEST_VARIABLE"), "a=b");
  EXPECT_EQ(find_variable(current_environment(), "YOKE_TEST_VARIABLE"), std::nullopt);
}

TEST(Environment, Lines) {
  EXPECT_EQ(environment_lines({{"B", "2"}, {"A", ""}}), (std::vector<std::string>{"A=", "B=2"}));
}

}  // namespace
}  // namespace yoke
