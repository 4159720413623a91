#include "train/comm/world.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace yoke {
namespace {

using testing::HasSubstr;

TEST(World, WithoutVariablesItIsAWorldOfOne) {
  auto world = world_from_environment({});
  ASSERT_TRUE(world);
  EXPECT_EQ(*world, World{});
}

TEST(World, Torchrun) {
  auto world = world_from_environment({{"RANK", "3"},
                                       {"WORLD_SIZE", "4"},
                                       {"LOCAL_RANK", "1"},
                                       {"LOCAL_WORLD_SIZE", "2"},
                                       {"MASTER_ADDR", "node1"},
                                       {"MASTER_PORT", "29500"},
                                       {"TORCHELASTIC_USE_AGENT_STORE", "True"},
                                       {"TORCHELASTIC_RESTART_COUNT", "2"}});
  ASSERT_TRUE(world) << world.error().what;
  EXPECT_EQ(*world, (World{3, 4, 1, 2, "node1", 29500, true, 2}));
}

TEST(World, ContradictionsNameTheVariable) {
  auto what = [](const Environment& environment) {
    auto world = world_from_environment(environment);
    return world ? std::string("no error") : world.error().what;
  };
  EXPECT_THAT(what({{"RANK", "0"}}), HasSubstr("WORLD_SIZE is not set"));
  EXPECT_THAT(what({{"RANK", "4"}, {"WORLD_SIZE", "4"}}), HasSubstr("RANK is '4'"));
  EXPECT_THAT(what({{"RANK", "x"}, {"WORLD_SIZE", "4"}}), HasSubstr("RANK is 'x'"));
  EXPECT_THAT(what({{"RANK", "0"}, {"WORLD_SIZE", "2"}}), HasSubstr("MASTER_PORT is not set"));
  EXPECT_THAT(what({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "70000"}, {"MASTER_ADDR", "a"}}),
              HasSubstr("MASTER_PORT is '70000'"));
  EXPECT_THAT(what({{"RANK", "0"}, {"WORLD_SIZE", "2"}, {"MASTER_PORT", "1"}, {"MASTER_ADDR", ""}}),
              HasSubstr("MASTER_ADDR is not set"));
}

}  // namespace
}  // namespace yoke
