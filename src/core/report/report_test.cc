#include "core/report/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "core/report/html.h"
#include "core/report/report_json.h"
#include "core/report/sample_for_test.h"
#include "core/report/summary.h"

namespace yoke {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

std::optional<double> seconds_of(const Report& report, std::string_view name) {
  for (const StepPart& part : report.step_parts) {
    if (part.name == name) return part.seconds;
  }
  return std::nullopt;
}

TEST(Report, CountsARestartedRun) {
  Report report = make_report(restarted_run());
  EXPECT_EQ(report.outcome, "done");
  EXPECT_EQ(report.steps_done, 6);
  EXPECT_EQ(report.tokens, 600);
  EXPECT_EQ(report.world_size, 2);
  EXPECT_EQ(report.parameters, 1'000'000);
  EXPECT_EQ(report.start_ns, 10 * second_ns);
  EXPECT_DOUBLE_EQ(report.wall_seconds.value(), 15);
  EXPECT_THAT(report.loss,
              ElementsAre(Point{1, 9}, Point{2, 8}, Point{3, 7}, Point{4, 3.25}, Point{5, 2.25}, Point{6, 1.25}));
  EXPECT_EQ(report.first_loss, (Point{1, 9}));
  EXPECT_EQ(report.last_loss, (Point{6, 1.25}));
  EXPECT_EQ(report.best_loss, (Point{6, 1.25}));
  EXPECT_THAT(report.validation_loss, ElementsAre(Point{6, 1.5}));
  ASSERT_EQ(report.restarts.size(), 1u);
  EXPECT_EQ(report.restarts[0].reason, "rank 1 was killed by SIGKILL");
  EXPECT_EQ(report.restarts[0].at_step, 5);
  EXPECT_EQ(report.checkpoints, 1);
  EXPECT_EQ(report.last_checkpoint_step, 3);
  EXPECT_EQ(report.last_checkpoint_bytes, 4096);
  EXPECT_EQ(report.versions.at("libtorch"), "2.13.0");
}

TEST(Report, WhatWasNotMeasuredIsAbsent) {
  Report report = make_report({});
  EXPECT_EQ(report.outcome, "unfinished");
  EXPECT_EQ(report.steps_done, 0);
  EXPECT_EQ(report.tokens, std::nullopt);
  EXPECT_EQ(report.last_loss, std::nullopt);
  EXPECT_EQ(report.median_tokens_per_second, std::nullopt);
  EXPECT_EQ(report.mean_mfu, std::nullopt);
  EXPECT_EQ(report.mean_step_seconds, std::nullopt);
  EXPECT_EQ(report.peak_memory.measured, std::nullopt);
  EXPECT_EQ(report.wall_seconds, std::nullopt);
  for (const StepPart& part : report.step_parts) EXPECT_EQ(part.seconds, std::nullopt) << part.name;
  for (const MemoryPart& part : report.memory_parts) EXPECT_EQ(part.measured, std::nullopt) << part.name;
  EXPECT_THAT(report.problems, IsEmpty());
}

TEST(Report, SpeedLeavesOutTheFirstStepsOfEachAttempt) {
  RunData data;
  // 10 steps, so that 1 of each attempt is cold: 10 s for steps 0 and 5, then 1, 2, 4 and 5 s.
  double seconds[] = {10, 1, 2, 4, 5, 10, 1, 2, 4, 5};
  for (int s = 0; s < 10; ++s) {
    if (s % 5 == 0) data.records.push_back({0, 0, sample_start(s / 5, s)});
    StepEvent step = sample_step(s, 1, seconds[s]);
    step.mfu = s % 5 == 0 ? 0.1 : 0.5;
    data.records.push_back({0, 0, step});
  }
  Report report = make_report(data);
  EXPECT_EQ(report.warm_steps, 8);
  // Speeds 100 50 25 20, twice.
  EXPECT_DOUBLE_EQ(report.median_tokens_per_second.value(), 37.5);
  EXPECT_DOUBLE_EQ(report.mean_tokens_per_second.value(), 48.75);
  EXPECT_DOUBLE_EQ(report.mean_mfu.value(), 0.5);
  EXPECT_DOUBLE_EQ(report.mean_step_seconds.value(), 3);
  EXPECT_DOUBLE_EQ(report.median_step_seconds.value(), 3);
  EXPECT_EQ(report.tokens_per_second.size(), 10u);
}

TEST(Report, StepTimeIsTheMeanOverRanksAndTheRestIsOther) {
  RunData data;
  for (int rank = 0; rank < 2; ++rank) {
    for (int s = 0; s < 3; ++s) {
      StepEvent step = sample_step(s, 1, s == 0 ? 100 : 4);
      step.seconds.forward = 1;
      step.seconds.backward = rank == 0 ? 2 : 1;
      if (s == 2) step.seconds.checkpoint = 1;  // of every second warm step
      data.records.push_back({0, rank, step});
    }
  }
  Report report = make_report(data);
  EXPECT_DOUBLE_EQ(report.mean_step_seconds.value(), 4);
  EXPECT_DOUBLE_EQ(seconds_of(report, "forward").value(), 1);
  EXPECT_DOUBLE_EQ(seconds_of(report, "backward").value(), 1.5);
  EXPECT_DOUBLE_EQ(seconds_of(report, "checkpoint").value(), 0.5);
  EXPECT_DOUBLE_EQ(seconds_of(report, "other").value(), 1);
  for (Record& record : data.records) std::get<StepEvent>(record.event).seconds.checkpoint = 1e-6;
  report = make_report(data);
  EXPECT_NE(report_summary(report).find("  forward  "), std::string::npos);
  EXPECT_EQ(report_summary(report).find("  checkpoint  "), std::string::npos) << "0.0% is no line";
  EXPECT_EQ(seconds_of(report, "communication_exposed"), std::nullopt);
}

TEST(Report, MemoryIsTheHighestOfAnyRankBesideThePrediction) {
  RunData data;
  for (int rank = 0; rank < 2; ++rank) {
    StepEvent step = sample_step(0, 1, 1);
    step.memory.peak_bytes = 1000 + rank;
    step.memory.activations = 300 - rank;
    data.records.push_back({0, rank, step});
  }
  data.plan_json =
      R"({"layout":{"data":2,"tensor":1,"zero":1},"memory_bytes":{"activations":280,"optimizer":8,"total":900}})";
  Report report = make_report(data);
  EXPECT_EQ(report.layout, "data 2, ZeRO 1");
  EXPECT_EQ(report.peak_memory.measured, 1001);
  EXPECT_EQ(report.peak_memory.predicted, 900);
  ASSERT_EQ(report.memory_parts.size(), 6u);
  EXPECT_EQ(report.memory_parts[2].name, "optimizer");
  EXPECT_EQ(report.memory_parts[2].predicted, 8);
  EXPECT_EQ(report.memory_parts[2].measured, std::nullopt);
  EXPECT_EQ(report.memory_parts[3].name, "activations");
  EXPECT_EQ(report.memory_parts[3].predicted, 280);
  EXPECT_EQ(report.memory_parts[3].measured, 300);
}

TEST(Report, ReadsTheSpecWithItsOrigins) {
  RunData data;
  data.run_json =
      R"({"schema":1,"spec":{"name":"tiny","model":{"preset":"llama-10m"},"train":{"steps":200,"precision":"bf16",)"
      R"("optimizer":{"lr":0.0003}},"data":{"train":["a","b"]}},"origins":{"train.steps":"--set"}})";
  Report report = make_report(data);
  EXPECT_EQ(report.name, "tiny");
  EXPECT_EQ(report.model, "llama-10m");
  EXPECT_EQ(report.precision, "bf16");
  EXPECT_EQ(report.steps_planned, 200);
  std::vector<std::string> rows;
  for (const auto& [key, value, origin] : report.spec) rows.push_back(key + "=" + value + "|" + origin);
  EXPECT_THAT(rows, ElementsAre("name=tiny|", "model.preset=llama-10m|", "train.steps=200|--set",
                                "train.precision=bf16|", "train.optimizer.lr=0.0003|", "data.train=[\"a\",\"b\"]|"));
}

TEST(Report, WhatCannotBeReadIsAProblem) {
  RunData data;
  data.run_json = "[";
  data.plan_json = "3";
  data.problems = {"a line was bad"};
  EXPECT_THAT(make_report(data).problems,
              ElementsAre("a line was bad", "run.json is not a JSON object", "plan.json is not a JSON object"));
}

TEST(Report, LossesThatAreNotFiniteAreCountedAndNeverBest) {
  RunData data;
  double losses[] = {3, 2, std::nan(""), -HUGE_VAL, 4};
  for (int s = 0; s < 5; ++s) data.records.push_back({0, 0, sample_step(s, losses[s], 1)});
  Report report = make_report(data);
  EXPECT_EQ(report.losses_not_finite, 2);
  EXPECT_EQ(report.best_loss, (Point{2, 2}));
}

// Two sessions, a hundred seconds apart, each with a restart.
TEST(Report, AResumeIsNoRestartAndTheTimeBeforeItDoesNotCount) {
  RunData data;
  auto add = [&](std::int64_t seconds, std::int64_t rank, Event event) {
    data.records.push_back({seconds * second_ns, rank, std::move(event)});
  };
  add(12, -1, RestartEvent{1, "first"});
  add(121, -1, RestartEvent{0, "yoke run --resume"});
  add(125, -1, RestartEvent{1, "second"});
  add(10, 0, sample_start(0, 0));
  add(11, 0, sample_step(0, 1, 1));
  add(13, 0, sample_start(1, 0));
  for (int s = 0; s < 8; ++s) add(14 + s, 0, sample_step(s, 1, 1));
  add(122, 0, sample_start(0, 7));
  add(123, 0, sample_step(7, 1, 1));
  add(126, 0, sample_start(1, 7));
  add(127, 0, sample_step(7, 1, 1));
  Report report = make_report(data);
  std::vector<std::string> reasons;
  for (const ReportRestart& restart : report.restarts) reasons.push_back(restart.reason);
  EXPECT_THAT(reasons, ElementsAre("first", "yoke run --resume", "second"));
  EXPECT_EQ(report.restarts[1].at_step, 8);
  EXPECT_EQ(report.restarts[1].resumed_at, 7);
  EXPECT_EQ(report.restarts[2].at_step, 8);
  EXPECT_DOUBLE_EQ(report.wall_seconds.value(), 17) << "10 to 21 s and 121 to 127 s";
  std::string summary = report_summary(report);
  EXPECT_THAT(summary, testing::StartsWith("run: unfinished, 8 steps in 17.0 s, 2 restarts, resumed 1 time\n"));
  EXPECT_THAT(summary, testing::HasSubstr("\n  restart 1    after step 1: first (1 step repeated"));
  EXPECT_THAT(summary, testing::HasSubstr("\n  resumed      after step 8: yoke run --resume (1 step repeated)\n"));
  EXPECT_THAT(summary, testing::HasSubstr("\n  restart 2    after step 8: second (1 step repeated"));
}

TEST(Report, SkippedStepsAreCounted) {
  RunData data;
  for (int s = 0; s < 5; ++s) {
    StepEvent step = sample_step(s, 3, 1);
    step.loss_scale = 1024;
    if (s < 2) step.grad_norm = s == 0 ? HUGE_VAL : std::nan("");
    data.records.push_back({0, 0, step});
  }
  Report report = make_report(data);
  EXPECT_EQ(report.steps_done, 5);
  EXPECT_EQ(report.steps_skipped, 2);
  EXPECT_NE(report_summary(report).find("  skipped      2 of 5 steps: their gradients overflowed in fp16\n"),
            std::string::npos);
  EXPECT_NE(report_json(report).find("\"steps_skipped\": 2"), std::string::npos);
  EXPECT_NE(report_html(report).find("<small>2 skipped: overflow in fp16, 500 tokens</small>"), std::string::npos);
}

TEST(Report, OutcomeIsTheLaunchersOrTheWorstOfTheRanks) {
  auto outcome = [](std::vector<Record> records) {
    RunData data;
    data.records = std::move(records);
    return make_report(data).outcome;
  };
  Record start0{0, 0, sample_start(0, 0)}, start1{0, 1, sample_start(0, 0)};
  Record done0{1, 0, EndEvent{5, "done"}}, done1{1, 1, EndEvent{5, "done"}}, failed1{1, 1, EndEvent{0, "failed"}};
  EXPECT_EQ(outcome({start0, start1, done0, done1}), "done");
  EXPECT_EQ(outcome({start0, start1, done0}), "unfinished");
  EXPECT_EQ(outcome({start0, start1, done0, failed1}), "failed");
  EXPECT_EQ(outcome({start0, start1, done0, done1, {2, -1, EndEvent{5, "stopped"}}}), "stopped");
  EXPECT_EQ(outcome({start0, done0, {2, -1, EndEvent{5, "failed"}}, {3, -1, RestartEvent{1, "x"}}}), "done");
}

TEST(Report, MessagesSaidByManyRanksAreToldOnce) {
  RunData data;
  for (int rank = 0; rank < 3; ++rank) data.records.push_back({0, rank, MessageEvent{true, "no route", "check"}});
  data.records.push_back({0, 2, MessageEvent{false, "no route", ""}});
  Report report = make_report(data);
  ASSERT_EQ(report.messages.size(), 2u);
  EXPECT_TRUE(report.messages[0].error);
  EXPECT_EQ(report.messages[0].rank, 0);
  EXPECT_EQ(report.messages[0].count, 3);
  EXPECT_EQ(report.messages[1].count, 1);
}

TEST(Report, StartUpIsTheSlowestRanksAndDifferingVersionsAreAProblem) {
  RunData data;
  StartEvent one = sample_start(0, 0), two = sample_start(0, 0);
  one.startup_seconds = 2, two.startup_seconds = 3;
  two.versions["libtorch"] = "2.12.0";
  two.host = "box2";
  data.records = {{0, 0, one}, {0, 1, two}};
  Report report = make_report(data);
  EXPECT_EQ(report.startup_seconds, 3);
  EXPECT_THAT(report.hosts, ElementsAre("box", "box2"));
  EXPECT_THAT(report.problems, ElementsAre("the ranks ran with different versions of libtorch"));
}

}  // namespace
}  // namespace yoke
