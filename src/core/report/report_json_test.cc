#include "core/report/report_json.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "core/report/sample_for_test.h"

namespace yoke {
namespace {

using nlohmann::json;

TEST(ReportJson, HoldsTheFiguresInBaseUnits) {
  RunData data = restarted_run();
  data.plan_json = R"({"memory_bytes":{"total":900,"optimizer":8}})";
  json root = json::parse(report_json(make_report(data)));
  EXPECT_EQ(root.at("schema"), 1);
  EXPECT_EQ(root.at("outcome"), "done");
  EXPECT_EQ(root.at("steps_done"), 6);
  EXPECT_EQ(root.at("tokens"), 600);
  EXPECT_EQ(root.at("loss"), json::parse(R"({"first":{"step":1,"value":9.0},"last":{"step":6,"value":1.25},
      "best":{"step":6,"value":1.25},"not_finite":0})"));
  EXPECT_EQ(root.at("tokens_per_second"), json::parse(R"({"median":100.0,"mean":100.0})"));
  EXPECT_EQ(root.at("step"), json::parse(R"({"mean_seconds":1.0,"median_seconds":1.0})"));
  EXPECT_EQ(root.at("memory_predicted"), json::parse(R"({"peak_bytes":900.0,"optimizer":8.0})"));
  EXPECT_EQ(root.at("restarts"), json::parse(R"([{"attempt":1,"reason":"rank 1 was killed by SIGKILL","at_step":5,
      "resumed_at":3,"repeated_steps":2,"lost_seconds":7.0}])"));
}

TEST(ReportJson, WhatWasNotMeasuredIsAbsent) {
  json root = json::parse(report_json(make_report({})));
  for (const char* key :
       {"tokens", "loss", "validation_loss", "tokens_per_second", "mean_mfu", "step", "memory_measured",
        "memory_predicted", "wall_seconds", "startup_seconds", "world_size", "steps_planned"}) {
    EXPECT_FALSE(root.contains(key)) << key;
  }
}

TEST(ReportJson, LossesThatAreNotFiniteAndBytesThatAreNotUtf8AreStillJson) {
  RunData data;
  data.records = {{0, 0, sample_step(0, std::nan(""), 1)}};
  data.problems = {"bad \xff byte"};
  json root = json::parse(report_json(make_report(data)));
  EXPECT_EQ(root.at("loss").at("last").at("value"), "nan");
  EXPECT_FALSE(root.at("loss").contains("best"));
}

}  // namespace
}  // namespace yoke
