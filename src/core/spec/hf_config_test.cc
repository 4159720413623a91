#include "core/spec/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <fstream>
#include <sstream>

#include "core/spec/presets.h"

namespace yoke {
namespace {

using testing::HasSubstr;

// Written by transformers: tests/golden/make_hf_configs.py.
std::string golden(const std::string& name) {
  std::ifstream in(std::string(YOKE_SOURCE_DIR "/tests/golden/hf_configs/") + name + ".json");
  EXPECT_TRUE(in) << name;
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

constexpr const char* llama = R"({"model_type": "llama", "hidden_size": 96, "intermediate_size": 200,
  "num_hidden_layers": 3, "num_attention_heads": 6, "vocab_size": 1000)";
constexpr const char* gpt2 =
    R"({"model_type": "gpt2", "n_embd": 48, "n_head": 4, "n_layer": 2, "n_positions": 64, "vocab_size": 300)";

Result<Model> read(const std::string& text) { return model_from_hf_config(text, "config.json"); }

TEST(HfConfig, ReadsALlamaOfTransformers) {
  auto m = read(golden("llama"));
  ASSERT_TRUE(m) << m.error().what;
  EXPECT_EQ(*m, (Model{Family::llama, 3, 96, 6, 2, 16, 200, 1000, 512, false, 500000, 1e-5, 0.03}));
}

TEST(HfConfig, ReadsHeadsOfTheirOwnWidthAndTransformersDefaults) {
  auto m = read(golden("llama_wide_heads_tied"));
  ASSERT_TRUE(m) << m.error().what;
  EXPECT_EQ(*m, (Model{Family::llama, 3, 96, 6, 6, 32, 200, 1000, 2048, true, 10000, 1e-6, 0.02}));
}

TEST(HfConfig, ReadsGpt2OfTransformers) {
  auto whole = read(golden("gpt2"));
  ASSERT_TRUE(whole) << whole.error().what;
  EXPECT_EQ(*whole, (*find_preset("gpt2-124m"))->shape);
  auto small = read(golden("gpt2_small"));
  ASSERT_TRUE(small) << small.error().what;
  EXPECT_EQ(*small, (Model{Family::gpt2, 2, 48, 4, 4, 12, 100, 300, 64, true, 10000, 1e-5, 0.02}));
}

TEST(HfConfig, ReadsTheOlderPlaceOfRopeTheta) {
  auto m = read(std::string(llama) + R"(, "rope_theta": 777, "rope_scaling": null})");
  ASSERT_TRUE(m) << m.error().what;
  EXPECT_EQ(m->rope_theta, 777);
}

TEST(HfConfig, WhatIsWrittenReadsBackTheSame) {
  ASSERT_TRUE(rc::check([] {
    Model m;
    m.family = *rc::gen::element(Family::llama, Family::gpt2);
    const bool grouped = m.family == Family::llama;
    m.layers = *rc::gen::inRange<std::int64_t>(1, 100);
    m.kv_heads = *rc::gen::inRange<std::int64_t>(1, 9);
    m.heads = m.kv_heads * (grouped ? *rc::gen::inRange<std::int64_t>(1, 5) : 1);
    m.head_dim = 2 * *rc::gen::inRange<std::int64_t>(1, 65);
    m.hidden = m.heads * m.head_dim * (grouped ? *rc::gen::inRange<std::int64_t>(1, 3) : 1);
    m.ffn = *rc::gen::inRange<std::int64_t>(1, 10000);
    m.vocab = *rc::gen::inRange<std::int64_t>(1, 200000);
    m.max_sequence = *rc::gen::inRange<std::int64_t>(1, 10000);
    m.tied = *rc::gen::arbitrary<bool>();
    if (grouped) m.rope_theta = 1 + *rc::gen::inRange(0, 1000000) / 7.0;
    m.norm_eps = 1e-7 * *rc::gen::inRange(1, 1000);
    m.init_std = 1e-3 * *rc::gen::inRange(1, 100);
    auto back = read(hf_config_from_model(m, "bfloat16"));
    RC_ASSERT(back.has_value());
    RC_ASSERT(*back == m);
  }));
}

struct Bad {
  std::string text, what;
};

TEST(HfConfig, NamesWhatYokeDoesNotHave) {
  const std::string l = llama, g = gpt2;
  const Bad cases[] = {
      {golden("llama_scaled_rope"), "rope_type is \"llama3\", but Yoke has \"default\" only"},
      {golden("llama_biased"), "attention_bias is true, but Yoke has false only"},
      {golden("gpt2_relu"), "activation_function is \"relu\", but Yoke has \"gelu_new\" only"},
      {l + R"(, "mlp_bias": true})", "mlp_bias is true"},
      {l + R"(, "hidden_act": "gelu"})", "hidden_act is \"gelu\", but Yoke has \"silu\" only"},
      {l + R"(, "rope_scaling": {"type": "linear", "factor": 2.0}})", "type is \"linear\""},
      {l + R"(, "rope_scaling": "linear"})", "rope_scaling is \"linear\", not an object"},
      {l + R"(, "partial_rotary_factor": 0.5})", "partial_rotary_factor is 0.5"},
      {l + R"(, "rope_theta": 5, "rope_parameters": {"rope_theta": 6}})", "rope_theta is 5, but 6 in rope_parameters"},
      {l + R"(, "quantization_config": {"bits": 4}})", "quantization_config is an object, which Yoke does not have"},
      {g + R"(, "scale_attn_weights": false})", "scale_attn_weights is false"},
      {g + R"(, "scale_attn_by_inverse_layer_idx": true})", "scale_attn_by_inverse_layer_idx is true"},
      {g + R"(, "add_cross_attention": true})", "add_cross_attention is true"},
      {l + R"(, "num_key_value_heads": 4})", "num_key_value_heads is 4, which does not divide 6 heads"},
      {g + R"(, "n_head": 5})", "n_embd is 48"},
      {l + R"(, "vocab_size": 0})", "vocab_size is 0"},
      {l + R"(, "vocab_size": 1e3})", "vocab_size is 1000.0, not an integer"},
      {l + R"(, "vocab_size": 18446744073709551615})", "vocab_size is 18446744073709551615, not an integer"},
      {l + R"(, "rms_norm_eps": 1e999})", "a number is too large to be read"},
      {l + R"(, "rms_norm_eps": "small"})", "rms_norm_eps is \"small\", not a number"},
      {l + R"(, "tie_word_embeddings": 1})", "tie_word_embeddings is 1, not true or false"},
      {R"({"model_type": "llama"})", "num_hidden_layers is missing"},
      {R"({"model_type": "mistral"})", "model_type is \"mistral\""},
      {"{}", "model_type is missing"},
      {"[]", "not a JSON object"},
      {"{", "not JSON at byte 2"},
      {"", "not JSON at byte 1"},
  };
  for (const Bad& bad : cases) {
    auto m = read(bad.text);
    ASSERT_FALSE(m) << bad.what;
    EXPECT_THAT(m.error().what, HasSubstr("config.json: " + bad.what));
    EXPECT_EQ(m.error().kind, ErrorKind::usage);
    EXPECT_FALSE(m.error().hint.empty()) << bad.what;
  }
}

}  // namespace
}  // namespace yoke
