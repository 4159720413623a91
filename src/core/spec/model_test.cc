#include "core/spec/model.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include "core/spec/presets.h"

namespace yoke {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

Model small(Family family) {
  Model m;
  m.family = family;
  m.layers = 2, m.hidden = 8, m.heads = 2, m.kv_heads = family == Family::llama ? 1 : 2, m.head_dim = 4;
  m.ffn = 12, m.vocab = 10, m.max_sequence = 16;
  return m;
}

TEST(Model, CountsALlamaByHand) {
  // A layer: q 8*8, k and v 8*4 each, o 8*8, gate up down 3*8*12, two norms of 8 = 64 + 64 + 64 + 288 + 16 = 496.
  EXPECT_EQ(parameter_count(small(Family::llama)), 10 * 8 + 2 * 496 + 8 + 10 * 8);
}

TEST(Model, CountsAGpt2ByHand) {
  // A layer: q k v 3*(64 + 8), o 64 + 8, up 8*12 + 12, down 12*8 + 8, two norms of 2*8 = 216 + 72 + 108 + 104 + 32 =
  // 532.
  Model m = small(Family::gpt2);
  m.tied = true;
  EXPECT_EQ(parameter_count(m), 10 * 8 + 16 * 8 + 2 * 532 + 16);
}

TEST(Model, FlopsLeaveOutTheLookupsAndCountTheHead) {
  const double llama_multiplied = 2 * 496 + 8 + 10 * 8;
  EXPECT_DOUBLE_EQ(training_flops_per_token(small(Family::llama), 16), 6 * llama_multiplied + 12 * 2 * 8 * 16);
  Model gpt2 = small(Family::gpt2);
  gpt2.tied = true;
  const double gpt2_multiplied = 2 * 532 + 16 + 10 * 8;
  EXPECT_DOUBLE_EQ(training_flops_per_token(gpt2, 16), 6 * gpt2_multiplied + 12 * 2 * 8 * 16);
}

TEST(Model, TyingSavesOneMatrixAndNoFlops) {
  ASSERT_TRUE(rc::check([] {
    Model m = small(*rc::gen::element(Family::llama, Family::gpt2));
    m.layers = *rc::gen::inRange<std::int64_t>(1, 100);
    m.vocab = *rc::gen::inRange<std::int64_t>(1, 100000);
    Model tied = m;
    tied.tied = true;
    RC_ASSERT(parameter_count(m) - parameter_count(tied) == m.vocab * m.hidden);
    RC_ASSERT(training_flops_per_token(m, 64) == training_flops_per_token(tied, 64));
  }));
}

TEST(Model, TheLargestShapeStillCountsRight) {
  Model m = small(Family::llama);
  m.layers = 1 << 12, m.hidden = 1 << 18, m.heads = 1 << 14, m.kv_heads = 1 << 14, m.head_dim = 16, m.ffn = 1 << 20;
  m.vocab = 1 << 24, m.max_sequence = 1 << 28;
  ASSERT_TRUE(check(m));
  const double d = 1 << 18;
  EXPECT_NEAR(static_cast<double>(parameter_count(m)), 4096 * (4 * d * d + 3 * d * 1048576 + 2 * d) + 2 * d * 16777216,
              1e6);
}

struct Bad {
  const char* title;
  void (*spoil)(Model&);
  const char* what;
};

TEST(Model, CheckNamesTheFieldFirst) {
  const Bad cases[] = {
      {"no layers", [](Model& m) { m.layers = 0; }, "layers is 0"},
      {"negative", [](Model& m) { m.ffn = -4; }, "ffn is -4"},
      {"huge", [](Model& m) { m.vocab = INT64_MAX; }, "vocab is 9223372036854775807"},
      {"groups", [](Model& m) { m.heads = 3, m.kv_heads = 2; }, "kv_heads is 2, which does not divide 3 heads"},
      {"odd head", [](Model& m) { m.head_dim = 5; }, "head_dim is 5"},
      {"wide heads", [](Model& m) { m.heads = 1 << 14, m.head_dim = 1 << 12; }, "heads * head_dim"},
      {"theta", [](Model& m) { m.rope_theta = 0; }, "rope_theta is 0"},
      {"epsilon", [](Model& m) { m.norm_eps = 0; }, "norm_eps is 0"},
      {"not a number", [](Model& m) { m.init_std = std::nan(""); }, "init_std is nan"},
      {"gpt2 groups", [](Model& m) { m.family = Family::gpt2; }, "kv_heads is 1 with 2 heads"},
      {"gpt2 width", [](Model& m) { m.family = Family::gpt2, m.kv_heads = 2, m.hidden = 10; }, "hidden is 10"},
  };
  for (const Bad& bad : cases) {
    Model m = small(Family::llama);
    bad.spoil(m);
    auto checked = check(m);
    ASSERT_FALSE(checked) << bad.title;
    EXPECT_THAT(checked.error().what, StartsWith(bad.what)) << bad.title;
    EXPECT_FALSE(checked.error().hint.empty()) << bad.title;
    EXPECT_EQ(checked.error().kind, ErrorKind::usage);
  }
  EXPECT_TRUE(check(small(Family::llama)));
  EXPECT_TRUE(check(small(Family::gpt2)));
}

// transformers 5.24: sum of numel of the parameters of LlamaForCausalLM and GPT2LMHeadModel of each shape, on the meta
// device.
TEST(Presets, CountAsTransformersDoes) {
  const std::pair<const char*, std::int64_t> counts[] = {
      {"llama-1m", 1049728},     {"llama-10m", 9638784},      {"gpt2-124m", 124439808},
      {"gpt2-355m", 354823168},  {"gpt2-774m", 774030080},    {"gpt2-1558m", 1557611200},
      {"gpt3-5b", 5051228160},   {"gpt3-20b", 20262014976},   {"gpt3-175b", 174615846912},
      {"llama2-7b", 6738415616}, {"llama2-13b", 13015864320}, {"llama2-70b", 68976648192},
      {"llama3-8b", 8030261248}, {"llama3-70b", 70553706496}, {"llama3-405b", 405853388800}};
  ASSERT_EQ(presets().size(), std::size(counts));
  for (const auto& [preset, count] : counts) {
    auto found = find_preset(preset);
    ASSERT_TRUE(found) << preset;
    EXPECT_EQ(parameter_count((*found)->shape), count) << preset;
  }
}

TEST(Presets, EachMakesSenseAndSaysItsSource) {
  for (const Preset& preset : presets()) {
    EXPECT_TRUE(check(preset.shape)) << preset.name;
    EXPECT_FALSE(preset.source.empty()) << preset.name;
    EXPECT_THAT(preset.date, testing::MatchesRegex("20[0-9][0-9]-[0-9][0-9]-[0-9][0-9]")) << preset.name;
    EXPECT_EQ(*find_preset(preset.name), &preset) << "the name is taken twice: " << preset.name;
  }
}

TEST(Presets, AWrongNameIsAnErrorWithTheNearest) {
  auto near = find_preset("lama-10m");
  ASSERT_FALSE(near);
  EXPECT_EQ(near.error().hint, "did you mean \"llama-10m\"?");
  auto far = find_preset("something else entirely");
  ASSERT_FALSE(far);
  EXPECT_THAT(far.error().hint, HasSubstr("gpt2-124m"));
}

}  // namespace
}  // namespace yoke
