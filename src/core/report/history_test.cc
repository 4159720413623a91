#include "core/report/history.h"

#include <gtest/gtest.h>

#include "core/report/sample_for_test.h"

namespace yoke {
namespace {

std::vector<std::int64_t> step_numbers(const RankHistory& history) {
  std::vector<std::int64_t> numbers;
  for (const CountedStep& step : history.steps) numbers.push_back(step.event->step);
  return numbers;
}

TEST(History, AStepDoneAgainCountsAsItWasDoneLast) {
  RunData data = restarted_run();
  RankHistory history = rank_histories(data.records).at(0);
  EXPECT_EQ(step_numbers(history), (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(history.steps[2].event->loss, 7);
  EXPECT_EQ(history.steps[3].event->loss, 3.25);
  EXPECT_EQ(history.steps[3].index, 0);
  EXPECT_EQ(history.steps[5].index, 2);
  ASSERT_EQ(history.validations.size(), 1u) << "the one after step 3 was undone";
  EXPECT_EQ(history.validations[0]->step, 5);
  ASSERT_NE(history.end, nullptr);
}

TEST(History, ARestartCostsTheTimeUntilNewStepsBegin) {
  RunData data = restarted_run();
  RankHistory history = rank_histories(data.records).at(0);
  ASSERT_EQ(history.restarts.size(), 1u);
  const ReportRestart& restart = history.restarts[0];
  EXPECT_EQ(restart.attempt, 1);
  EXPECT_EQ(restart.at_step, 5);
  EXPECT_EQ(restart.resumed_at, 3);
  EXPECT_EQ(restart.repeated_steps(), 2);
  // Step 4 ended at 15 s; step 5 ended at 23 s after 1 s of work.
  EXPECT_DOUBLE_EQ(restart.lost_seconds.value(), 7);
}

TEST(History, WhatWasUndoneAndNotDoneAgainIsGone) {
  RunData data = restarted_run();
  data.records.resize(data.records.size() - 4);  // without steps 4 and 5, the validation and the end
  RankHistory history = rank_histories(data.records).at(0);
  EXPECT_EQ(step_numbers(history), (std::vector<std::int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(history.restarts.at(0).lost_seconds, std::nullopt);
  EXPECT_EQ(history.end, nullptr);
}

TEST(History, AResumeLosesNoTime) {
  std::vector<Record> records{{0, 0, sample_start(0, 0)},
                              {1 * second_ns, 0, sample_step(0, 1, 1)},
                              {90 * second_ns, 0, sample_start(0, 1)},
                              {91 * second_ns, 0, sample_step(1, 1, 1)}};
  RankHistory history = rank_histories(records).at(0);
  ASSERT_EQ(history.restarts.size(), 1u);
  EXPECT_EQ(history.restarts[0].attempt, 0);
  EXPECT_EQ(history.restarts[0].repeated_steps(), 0);
  EXPECT_EQ(history.restarts[0].lost_seconds, std::nullopt);
}

TEST(History, AnAttemptWithoutStepsRepeatsNothing) {
  std::vector<Record> records{{0, 0, sample_start(0, 0)}, {1, 0, sample_start(1, 0)}, {2, 0, sample_step(0, 1, 1)}};
  RankHistory history = rank_histories(records).at(0);
  EXPECT_EQ(history.restarts.at(0).repeated_steps(), 0);
  EXPECT_EQ(history.restarts.at(0).lost_seconds, std::nullopt);
}

}  // namespace
}  // namespace yoke
