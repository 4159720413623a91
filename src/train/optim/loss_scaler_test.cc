#include "train/optim/loss_scaler.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <vector>

namespace yoke {
namespace {

TEST(LossScaler, StartsWithTheSpecsScale) {
  EXPECT_EQ(LossScaler(LossScaleSpec()).scale(), 65536);
  EXPECT_EQ(LossScaler({.initial = 1000, .growth_interval = 5}).scale(), 1000);
}

TEST(LossScaler, AnOverflowHalvesAndSkips) {
  LossScaler scaler({.initial = 1024, .growth_interval = 3});
  EXPECT_FALSE(scaler.update(true));
  EXPECT_EQ(scaler.scale(), 512);
  EXPECT_TRUE(scaler.update(false));
  EXPECT_EQ(scaler.scale(), 512);
}

TEST(LossScaler, DoublesAfterGoodStepsInARow) {
  LossScaler scaler({.initial = 8, .growth_interval = 3});
  std::vector<double> scales;
  for (bool overflow : {false, false, true, false, false, false, false, false, false, false}) {
    scaler.update(overflow);
    scales.push_back(scaler.scale());
  }
  // The overflow ends the row; then after three good steps each.
  EXPECT_EQ(scales, (std::vector<double>{8, 8, 4, 4, 4, 8, 8, 8, 16, 16}));
}

TEST(LossScaler, StaysBetweenOneAndTwoToThe24th) {
  LossScaler scaler({.initial = 3, .growth_interval = 1});
  for (int i = 0; i < 5; ++i) scaler.update(true);
  EXPECT_EQ(scaler.scale(), 1);
  for (int i = 0; i < 40; ++i) scaler.update(false);
  EXPECT_EQ(scaler.scale(), std::ldexp(1, 24));
  scaler.update(true);
  EXPECT_EQ(scaler.scale(), std::ldexp(1, 23));
}

TEST(LossScaler, GoesOnFromAState) {
  const LossScaleSpec spec{.initial = 64, .growth_interval = 4};
  LossScaler whole(spec), first(spec);
  const std::vector<bool> overflows = {false, true, false, false, false, false, false, true, false};
  for (std::size_t i = 0; i < overflows.size(); ++i) {
    if (i == 5) {
      LossScaler second(spec);
      ASSERT_TRUE(second.restore(first.state()));
      first = second;
    }
    EXPECT_EQ(first.update(overflows[i]), whole.update(overflows[i]));
    EXPECT_EQ(first.state(), whole.state()) << i;
  }
  // A shorter interval than the one it was saved with: the next good step is enough.
  LossScaler impatient({.initial = 1, .growth_interval = 2});
  ASSERT_TRUE(impatient.restore({32, 100}));
  impatient.update(false);
  EXPECT_EQ(impatient.state(), (LossScaler::State{64, 0}));
}

TEST(LossScaler, ABadStateIsRefused) {
  LossScaler scaler{LossScaleSpec()};
  for (LossScaler::State bad : {LossScaler::State{0, 0},
                                {0.5, 0},
                                {-8, 0},
                                {0x1p25, 0},
                                {8, -1},
                                {std::nan(""), 0},
                                {std::numeric_limits<double>::infinity(), 0}}) {
    auto restored = scaler.restore(bad);
    ASSERT_FALSE(restored) << bad.scale;
    EXPECT_FALSE(restored.error().hint.empty());
  }
  EXPECT_EQ(scaler.state(), (LossScaler::State{65536, 0}));
}

}  // namespace
}  // namespace yoke
