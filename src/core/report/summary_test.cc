#include "core/report/summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "core/report/sample_for_test.h"

namespace yoke {
namespace {

TEST(Summary, TellsARunInAFewAlignedLines) {
  RunData data = restarted_run();
  data.folder = "runs/tiny/1";
  data.run_json = R"({"spec":{"name":"tiny","model":{"preset":"llama-10m"},"train":{"steps":6,"precision":"fp32"}}})";
  data.plan_json = R"({"layout":{"data":2},"memory_bytes":{"total":1048576}})";
  for (Record& record : data.records) {
    if (auto* step = std::get_if<StepEvent>(&record.event)) {
      step->seconds.forward = 0.3;
      step->seconds.backward = 0.6;
      step->memory.peak_bytes = 2 << 20;
    }
  }
  EXPECT_EQ(report_summary(make_report(data)),
            "tiny: done, 6 of 6 steps in 15.0 s, 1 restart\n"
            "\n"
            "  model        llama-10m, 1.00M parameters\n"
            "  ran on       2 ranks on cpu, data 2, fp32\n"
            "  loss         9.0000 -> 1.2500, best 1.2500 at step 6\n"
            "  validation   1.5000\n"
            "  tokens       600\n"
            "  speed        100 tokens/s (median of 4 warm steps; mean 100)\n"
            "  a step       1.0 s\n"
            "               forward                  300 ms  30.0%  █████████\n"
            "               backward                 600 ms  60.0%  ██████████████████\n"
            "               other                    100 ms  10.0%  ███\n"
            "  memory       2.00 MiB a rank at the peak (predicted 1.00 MiB, +100.0%)\n"
            "  checkpoints  1, the last after step 3, 4.00 KiB, 500 ms each in the background\n"
            "  start-up     not measured\n"
            "  restart 1    after step 5: rank 1 was killed by SIGKILL (2 steps repeated, 7.0 s lost)\n"
            "  report       runs/tiny/1/report.html\n");
}

TEST(Summary, SaysWhatWasNotMeasured) {
  RunData data;
  data.records = {{0, 1, MessageEvent{true, "the disk is full", ""}}, {0, 1, MessageEvent{false, "slow", ""}}};
  data.problems = {"a line was bad"};
  EXPECT_EQ(report_summary(make_report(data)),
            "run: unfinished, 0 steps in 0 us\n"
            "\n"
            "  loss         not measured\n"
            "  validation   not measured\n"
            "  tokens       not measured\n"
            "  speed        not measured\n"
            "  a step       not measured\n"
            "  memory       not measured\n"
            "  checkpoints  none\n"
            "  start-up     not measured\n"
            "  error        rank 1: the disk is full\n"
            "  warnings     1, see the report\n"
            "  note         a line was bad\n"
            "  report       report.html\n");
}

}  // namespace
}  // namespace yoke
