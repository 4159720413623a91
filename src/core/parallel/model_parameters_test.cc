#include "core/parallel/model_parameters.h"

#include <gtest/gtest.h>

namespace yoke {
namespace {

Model small(Family family, bool tied) {
  return {family, 2, 8, 2, family == Family::llama ? 1 : 2, 4, 12, 10, 16, tied, 10000, 1e-5, 0.02};
}

std::vector<std::string> frozen(const std::vector<ParameterSize>& parameters) {
  std::vector<std::string> names;
  for (const ParameterSize& p : parameters)
    if (!p.trainable) names.push_back(p.name);
  return names;
}

TEST(ModelParameters, SizesAddUpToTheModel) {
  for (Family family : {Family::llama, Family::gpt2}) {
    for (bool tied : {false, true}) {
      std::int64_t sum = 0;
      for (const ParameterSize& p : model_parameters(small(family, tied))) sum += p.numel;
      EXPECT_EQ(sum, parameter_count(small(family, tied))) << name(family) << tied;
    }
  }
}

TEST(ModelParameters, PatternsFreeze) {
  auto parameters = model_parameters(small(Family::llama, false));
  ASSERT_TRUE(freeze(parameters, {}));
  EXPECT_TRUE(frozen(parameters).empty());
  ASSERT_TRUE(freeze(parameters, {"model.embed*", "*.1.self_attn.?_proj.weight"}));
  EXPECT_EQ(frozen(parameters), (std::vector<std::string>{
                                    "model.embed_tokens.weight", "model.layers.1.self_attn.q_proj.weight",
                                    "model.layers.1.self_attn.k_proj.weight", "model.layers.1.self_attn.v_proj.weight",
                                    "model.layers.1.self_attn.o_proj.weight"}));
}

TEST(ModelParameters, PatternsThatMakeNoSense) {
  auto parameters = model_parameters(small(Family::gpt2, true));
  auto nothing = freeze(parameters, {"*wte*", "model.layers.*"});
  ASSERT_FALSE(nothing);
  EXPECT_EQ(nothing.error().kind, ErrorKind::usage);
  EXPECT_NE(nothing.error().what.find("model.layers.*"), std::string::npos);
  auto all = freeze(parameters, {"*"});
  ASSERT_FALSE(all);
  EXPECT_EQ(all.error().kind, ErrorKind::usage);
  EXPECT_NE(all.error().what.find("no parameter is left to train"), std::string::npos);
}

}  // namespace
}  // namespace yoke
