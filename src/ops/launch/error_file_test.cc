#include "ops/launch/error_file.h"

#include <gtest/gtest.h>

namespace yoke {
namespace {

TEST(ErrorFile, TorchsFormats) {
  EXPECT_EQ(message_of_error_file(R"({"message":{"message":"ValueError: bad","extraInfo":{"timestamp":"1"}}})"),
            "ValueError: bad");
  EXPECT_EQ(message_of_error_file(R"({"message":"out of memory"})"), "out of memory");
}

TEST(ErrorFile, AnythingElseIsNoMessage) {
  for (const char* text :
       {"", "{", "[]", "{}", "3", R"({"message":{"message":{"message":"x"}}})", R"({"message":[1]})"}) {
    EXPECT_EQ(message_of_error_file(text), "") << text;
  }
}

}  // namespace
}  // namespace yoke
