#include "ops/launch/attempt_policy.h"

#include <gtest/gtest.h>

#include <csignal>

namespace yoke {
namespace {

constexpr std::int64_t second = 1'000'000'000;
using Signals = std::vector<int>;

ProcessEnd code(int rank, int value) { return {.index = rank, .pid = 100 + rank, .status = {.code = value}}; }
ProcessEnd killed(int rank, int signal) { return {.index = rank, .pid = 100 + rank, .status = {.signal = signal}}; }

struct AttemptPolicyTest : testing::Test {
  AttemptPolicy policy{{.stop = 30, .peers = 5}};
};

TEST_F(AttemptPolicyTest, SuccessNeedsNothing) {
  EXPECT_EQ(policy.on_end(code(0, 0), 0), Signals{});
  EXPECT_EQ(policy.on_end(code(1, 0), 0), Signals{});
  EXPECT_EQ(policy.deadline(), std::nullopt);
  EXPECT_FALSE(policy.cause());
}

TEST_F(AttemptPolicyTest, FirstFailureIsTheCauseAndStopsTheOthers) {
  EXPECT_EQ(policy.on_end(code(1, 3), 10 * second), Signals{SIGTERM});
  EXPECT_EQ(policy.deadline(), 15 * second);
  EXPECT_EQ(policy.on_end(killed(0, SIGTERM), 11 * second), Signals{});  // by us
  EXPECT_EQ(policy.on_end(code(2, 1), 11 * second), Signals{});
  EXPECT_EQ(policy.on_end(killed(3, SIGSEGV), 11 * second), Signals{});
  ASSERT_TRUE(policy.cause());
  EXPECT_EQ(policy.cause()->index, 1);
  ASSERT_EQ(policy.also_failed().size(), 2u);
  EXPECT_EQ(policy.also_failed()[0].index, 2);
  EXPECT_EQ(policy.also_failed()[1].index, 3);
  EXPECT_EQ(policy.stop_signal(), 0);
}

TEST_F(AttemptPolicyTest, AnExitCodeOfAllThatFailed) {
  EXPECT_FALSE(policy.failed_only_with(1));
  policy.on_end(code(1, 1), 0);
  EXPECT_TRUE(policy.failed_only_with(1));
  EXPECT_FALSE(policy.failed_only_with(3));
  policy.on_end(killed(2, SIGTERM), 0);  // by us
  policy.on_end(code(3, 1), 0);
  EXPECT_TRUE(policy.failed_only_with(1));
  policy.on_end(killed(0, SIGKILL), 0);  // what rank 1 took for an error of its peer
  EXPECT_FALSE(policy.failed_only_with(1));
}

TEST_F(AttemptPolicyTest, ATimeoutOfAnotherRankIsAnotherFailure) {
  policy.on_end(code(1, 1), 0);
  policy.on_end(code(0, 4), 0);
  EXPECT_FALSE(policy.failed_only_with(1));
}

TEST_F(AttemptPolicyTest, KillAfterTheGraceOnce) {
  policy.on_end(code(0, 1), 0);
  EXPECT_EQ(policy.on_time(5 * second - 1), Signals{});
  EXPECT_EQ(policy.on_time(5 * second), Signals{SIGKILL});
  EXPECT_EQ(policy.on_time(6 * second), Signals{});
  policy.on_end(killed(1, SIGKILL), 6 * second);
  EXPECT_TRUE(policy.also_failed().empty());
}

TEST_F(AttemptPolicyTest, ASignalFromOutsideStopsWithoutACause) {
  EXPECT_EQ(policy.on_signal(SIGTERM, 0), Signals{SIGTERM});
  EXPECT_EQ(policy.deadline(), 30 * second);
  EXPECT_EQ(policy.on_end(code(0, 1), second), Signals{});
  EXPECT_EQ(policy.on_end(killed(1, SIGTERM), second), Signals{});
  EXPECT_FALSE(policy.cause());
  EXPECT_EQ(policy.stop_signal(), SIGTERM);
}

TEST_F(AttemptPolicyTest, SecondInterruptKillsAtOnce) {
  EXPECT_EQ(policy.on_signal(SIGINT, 0), Signals{SIGINT});
  EXPECT_EQ(policy.on_signal(SIGINT, second), Signals{SIGKILL});
  EXPECT_EQ(policy.deadline(), std::nullopt);
  EXPECT_EQ(policy.stop_signal(), SIGINT);
}

TEST_F(AttemptPolicyTest, RepeatedTermDoesNotMoveTheDeadline) {
  policy.on_signal(SIGTERM, 0);
  EXPECT_EQ(policy.on_signal(SIGTERM, 20 * second), Signals{SIGTERM});
  EXPECT_EQ(policy.deadline(), 30 * second);
}

TEST_F(AttemptPolicyTest, UserSignalsArePassedOn) {
  EXPECT_EQ(policy.on_signal(SIGUSR1, 0), Signals{SIGUSR1});
  EXPECT_EQ(policy.deadline(), std::nullopt);
  EXPECT_EQ(policy.stop_signal(), 0);
  policy.on_end(killed(0, SIGUSR1), second);
  EXPECT_TRUE(policy.cause());
}

TEST_F(AttemptPolicyTest, InterruptWhilePeersStop) {
  policy.on_end(code(0, 1), 0);
  EXPECT_EQ(policy.on_signal(SIGINT, second), Signals{SIGINT});
  EXPECT_EQ(policy.deadline(), 5 * second);  // the shorter one
  EXPECT_EQ(policy.stop_signal(), SIGINT);
  EXPECT_EQ(policy.cause()->index, 0);
}

}  // namespace
}  // namespace yoke
