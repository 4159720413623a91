#include "core/plan/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <nlohmann/json.hpp>

#include "core/spec/presets.h"

namespace yoke {
namespace {

using testing::HasSubstr;

RunSpec run(std::int64_t global_batch, std::int64_t micro_batch = 0) {
  RunSpec spec;
  spec.model.shape = (*find_preset("llama-10m"))->shape;
  spec.train.global_batch = global_batch;
  spec.train.micro_batch = micro_batch;
  spec.train.precision = Precision::bf16;
  spec.train.steps = 10;
  spec.checkpoint.every = 5;
  return spec;
}

TEST(ChooseLayout, AllRanksGoToData) {
  auto layout = choose_layout(run(32), 4);
  ASSERT_TRUE(layout);
  EXPECT_EQ(layout->data, 4);
  EXPECT_EQ(layout->ranks(), 4);
  EXPECT_EQ(layout->micro_batch, 8);
  EXPECT_EQ(layout->precision, Precision::bf16);
}

TEST(ChooseLayout, TheAutomaticMicroBatchIsTheLargestDivisorUpToEight) {
  const std::pair<std::int64_t, std::int64_t> by_share[] = {{1, 1},  {2, 2},  {8, 8},  {9, 3}, {11, 1},
                                                            {12, 6}, {14, 7}, {20, 5}, {64, 8}};
  for (auto [share, micro_batch] : by_share) {
    EXPECT_EQ(choose_layout(run(share * 2), 2)->micro_batch, micro_batch) << share;
  }
}

TEST(ChooseLayout, AnyLayoutCoversTheBatch) {
  ASSERT_TRUE(rc::check([] {
    const auto batch = *rc::gen::inRange<std::int64_t>(1, 500), ranks = *rc::gen::inRange<std::int64_t>(1, 20);
    auto layout = choose_layout(run(batch), ranks);
    RC_ASSERT(layout.has_value() == (batch % ranks == 0));
    if (layout) RC_ASSERT(batch % (layout->data * layout->micro_batch) == 0);
  }));
}

TEST(ChooseLayout, SaysWhatDoesNotFit) {
  auto share = choose_layout(run(9), 4);
  ASSERT_FALSE(share);
  EXPECT_EQ(share.error().what, "train.global_batch is 9, which 4 replicas cannot share equally");
  EXPECT_THAT(share.error().hint, HasSubstr("choose 12"));

  auto micro = choose_layout(run(12, 4), 2);
  ASSERT_FALSE(micro);
  EXPECT_THAT(micro.error().what, HasSubstr("train.micro_batch is 4, which does not divide the 6 sequences"));
  EXPECT_THAT(micro.error().hint, HasSubstr("choose 6"));

  RunSpec sized = run(8);
  sized.parallel.automatic = false;
  sized.parallel.data = 4;
  auto ranks = choose_layout(sized, 2);
  ASSERT_FALSE(ranks);
  EXPECT_EQ(ranks.error().what, "[parallel] has sizes for 4 ranks, but there are 2");
  EXPECT_EQ(ranks.error().kind, ErrorKind::usage);
  EXPECT_EQ(choose_layout(sized, 4)->data, 4);
}

TEST(Plan, JsonHoldsTheLayoutAndItsPrediction) {
  auto plan = make_plan(run(8), 2);
  ASSERT_TRUE(plan);
  const auto json = nlohmann::json::parse(plan_to_json(*plan));
  EXPECT_EQ(json["schema"], 1);
  EXPECT_EQ(json["layout"]["data"], 2);
  EXPECT_EQ(json["layout"]["micro_batch"], 4);
  EXPECT_EQ(json["layout"]["schedule"], "1f1b");
  EXPECT_EQ(json["layout"]["precision"], "bf16");
  EXPECT_EQ(json["parameters"], 9638784);
  EXPECT_EQ(json["memory_bytes"]["parameters"], 2 * 9638784);
  EXPECT_EQ(json["memory_bytes"]["optimizer"], 12 * 9638784);
  std::int64_t sum = 0;
  for (const char* part : {"parameters", "gradients", "optimizer", "activations", "communication", "checkpoint"})
    sum += json["memory_bytes"][part].get<std::int64_t>();
  EXPECT_EQ(json["memory_bytes"]["total"], sum);
  // 6 * (all but the input embedding of 256 * 384) + 12 * 6 layers * 384 * 256 tokens.
  EXPECT_EQ(json["flops_per_token"], 6.0 * (9638784 - 256 * 384) + 12.0 * 6 * 384 * 256);
  EXPECT_TRUE(json["rejected"].empty());
}

}  // namespace
}  // namespace yoke
