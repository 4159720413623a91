#include "core/telemetry/tfevents.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <limits>

namespace yoke {
namespace {

TEST(Tfevents, Crc32cMatchesRfc3720) {
  EXPECT_EQ(crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::string(32, '\xff')), 0x62a8ab43u);
}

TEST(Tfevents, WritesTheBytesThatTensorBoardWrites) {
  // tests/golden/make_tfevents.py holds the same rows.
  std::string bytes = tfevents_header(1700000000.0);
  auto add = [&](double wall_time, std::int64_t step, std::vector<Scalar> scalars) {
    bytes += tfevents_scalars(wall_time, step, scalars);
  };
  add(1700000000.25, 0, {{"loss/train", 5.545177459716797}});
  add(1700000001.5, 1, {{"loss/train", 4.25}, {"grad_norm", 0.98}, {"learning_rate", 3e-4}});
  add(1700000002.125, 300,
      {{"loss/validation", std::numeric_limits<double>::infinity()}, {"tokens_per_second", 1.2345678e9}});
  add(1700000003.0, 5'000'000'000, {{"loss/train", 0.0}, {"t\u00e4g \U0001f402", -1e-30}});

  std::ifstream file(YOKE_SOURCE_DIR "/tests/golden/scalars.tfevents", std::ios::binary);
  ASSERT_TRUE(file) << "tests/golden/scalars.tfevents is missing";
  std::string golden{std::istreambuf_iterator<char>(file), {}};
  ASSERT_FALSE(golden.empty());
  EXPECT_TRUE(bytes == golden) << bytes.size() << " bytes, expected " << golden.size();
}

TEST(Tfevents, StepAndValidationEventsBecomeScalarsAtTheNumberOfStepsDone) {
  StepEvent step;
  step.step = 41;
  step.loss = 2.5;
  step.grad_norm = 1.25;
  step.learning_rate = 0.5;
  step.tokens = 8;
  step.seconds.total = 2;
  step.seconds.forward = 0.5;
  step.memory.peak_bytes = 1024;
  step.mfu = 0.25;
  EXPECT_EQ(tfevents_record({2'500'000'000, 0, step}),
            tfevents_scalars(2.5, 42,
                             std::vector<Scalar>{{"loss/train", 2.5},
                                                 {"grad_norm", 1.25},
                                                 {"learning_rate", 0.5},
                                                 {"mfu", 0.25},
                                                 {"seconds/total", 2},
                                                 {"seconds/forward", 0.5},
                                                 {"memory/peak_bytes", 1024}}));
  EXPECT_EQ(tfevents_record({3'000'000'000, 0, ValidationEvent{41, 2.75, 100}}),
            tfevents_scalars(3, 42, std::vector<Scalar>{{"loss/validation", 2.75}}));
  EXPECT_EQ(tfevents_record({0, 0, EndEvent{}}), "");
}

}  // namespace
}  // namespace yoke
