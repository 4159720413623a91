#include "core/telemetry/step_line.h"

#include <gtest/gtest.h>

#include <cmath>

namespace yoke {
namespace {

TEST(StepLine, ShowsEverythingThatIsKnown) {
  StepEvent step;
  step.step = 99;
  step.loss = 2.34561;
  step.grad_norm = 0.981;
  step.learning_rate = 3e-4;
  step.memory.peak_bytes = 1320702444;  // 1.23 * 2^30
  step.tokens_per_second = 12345.4;
  step.mfu = 0.4119;
  EXPECT_EQ(step_line(step, 200),
            "step: 100/200  loss: 2.3456  grad_norm: 0.98  lr: 3.0e-04  memory: 1.23 GiB  tps: 12,345  mfu: 41.2%");
}

TEST(StepLine, LeavesOutWhatIsNotKnown) {
  StepEvent step;
  step.step = 0;
  step.loss = 11.5;
  step.grad_norm = 12;
  step.learning_rate = 0;
  EXPECT_EQ(step_line(step, 0), "step: 1  loss: 11.5000  grad_norm: 12.00  lr: 0.0e+00");
  EXPECT_EQ(step_line(step, 1000), "step:    1/1000  loss: 11.5000  grad_norm: 12.00  lr: 0.0e+00");
}

TEST(StepLine, ShowsLossScaleAndWhatIsNotFinite) {
  StepEvent step;
  step.step = 4;
  step.loss = std::nan("");
  step.grad_norm = HUGE_VAL;
  step.learning_rate = 1e-3;
  step.loss_scale = 65536;
  step.tokens_per_second = HUGE_VAL;
  EXPECT_EQ(step_line(step, 9), "step: 5/9  loss: nan  grad_norm: inf  lr: 1.0e-03  scale: 65536");
  step.loss_scale = 16777216;
  EXPECT_NE(step_line(step, 9).find("scale: 16777216"), std::string::npos);
  step.loss_scale = 7.8125;
  EXPECT_NE(step_line(step, 9).find("scale: 7.8125"), std::string::npos);
}

}  // namespace
}  // namespace yoke
