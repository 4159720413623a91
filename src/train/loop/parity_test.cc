// The engine against Hugging Face transformers and plain PyTorch: first-step logits, twelve training steps, gradients
// and final weights, from the goldens of tests/golden/parity (made by make_parity.py, which describes them).
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "core/spec/hf_config.h"
#include "os/file.h"
#include "train/comm/shared_memory.h"
#include "train/loop/state.h"
#include "train/loop/trainer.h"

namespace yoke {
namespace {

using Json = nlohmann::json;

std::string folder(const std::string& model) { return std::string(YOKE_SOURCE_DIR) + "/tests/golden/parity/" + model; }

std::string text_of(const std::string& path) {
  auto text = read_file(path);
  EXPECT_TRUE(text) << path;
  return text.value_or("");
}

Model shape_of(const std::string& model) {
  std::string path = folder(model) + "/config.json";
  auto shape = model_from_hf_config(text_of(path), path);
  EXPECT_TRUE(shape) << shape.error().what;
  return *shape;
}

RunSpec spec_of(const Model& shape, const Json& c) {
  RunSpec spec;
  spec.model.shape = shape;
  spec.train.steps = c["steps"];
  spec.train.global_batch = c["global_batch"];
  spec.train.micro_batch = c["micro_batch"];
  spec.data.sequence = c["sequence"];
  spec.train.optimizer = {.lr = c["lr"],
                          .beta1 = c["betas"][0],
                          .beta2 = c["betas"][1],
                          .eps = c["eps"],
                          .weight_decay = c["weight_decay"],
                          .decay = c["decay"] == "all" ? Decay::all : Decay::matrices,
                          .clip = c["clip"]};
  spec.train.schedule.warmup = c["warmup"];
  return spec;
}

// The global batch of a step, as the golden's generator takes it.
Batch batch_of(const std::string& tokens, const RunSpec& spec, const Json& c, std::int64_t step) {
  std::int64_t sequence = spec.data.sequence, count = (static_cast<std::int64_t>(tokens.size()) - 1) / sequence;
  Batch batch{spec.train.global_batch, sequence, {}, {}, 0};
  for (std::int64_t r = 0; r < batch.rows; ++r) {
    std::int64_t k = (step * spec.train.global_batch + r) % count;
    std::int64_t limit = sequence;
    if (c.contains("limits") && !c["limits"].is_null())
      limit = c["limits"][static_cast<std::size_t>(k) % c["limits"].size()];
    for (std::int64_t p = 0; p < sequence; ++p) {
      auto at = static_cast<std::size_t>(k * sequence + p);
      batch.inputs.push_back(static_cast<unsigned char>(tokens[at]));
      batch.targets.push_back(p < limit ? static_cast<unsigned char>(tokens[at + 1]) : ignored_target);
      batch.valid += p < limit ? 1 : 0;
    }
  }
  return batch;
}

class Parity : public testing::TestWithParam<const char*> {};

TEST_P(Parity, TwelveSteps) {
  at::set_num_threads(1);  // the models are tiny
  std::string model = GetParam();
  Json golden = Json::parse(text_of(folder(model) + "/golden.json"));
  std::string tokens = text_of(folder(model) + "/tokens.bin");
  Model shape = shape_of(model);
  ASSERT_GE(golden["cases"].size(), 1u);
  for (const Json& c : golden["cases"]) {
    for (Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      SCOPED_TRACE(model + " " + c["name"].get<std::string>() + " recompute " + name(recompute));
      RunSpec spec = spec_of(shape, c);
      spec.train.recompute = recompute;
      auto communicators = thread_group("data", 1, Seconds(60));
      auto made = Trainer::make(spec, *communicators[0], at::kCPU, at::kFloat);
      ASSERT_TRUE(made) << made.error().what;
      Trainer& trainer = **made;
      auto loaded = load_weights(trainer, folder(model));
      ASSERT_TRUE(loaded) << loaded.error().what;

      const Json& logits = golden["logits"];
      Batch first = batch_of(tokens, spec, c, 0);
      at::NoGradGuard no_grad;
      at::Tensor ours = trainer.model().logits(at::tensor(first.inputs, at::kLong).view({first.rows, first.sequence}));
      auto values = ours.accessor<float, 3>();
      std::size_t next = 0;
      for (const Json& row : logits["rows"])
        for (const Json& position : logits["positions"])
          for (std::int64_t v = 0; v < shape.vocab; ++v) {
            float value = values[row.get<std::int64_t>()][position.get<std::int64_t>()][v];
            ASSERT_NEAR(value, logits["values"][next++].get<float>(), 1e-5)
                << "row " << row << " position " << position << " token " << v;
          }
      ASSERT_EQ(next, logits["values"].size());

      trainer.keep_gradients();
      at::AutoGradMode grad(true);
      for (std::int64_t s = 0; s < spec.train.steps; ++s) {
        auto result = trainer.step(s, batch_of(tokens, spec, c, s), false);
        ASSERT_TRUE(result) << result.error().what;
        auto i = static_cast<std::size_t>(s);
        EXPECT_NEAR(result->loss, c["loss"][i].get<double>(), 2e-6) << "step " << s;
        EXPECT_NEAR(result->grad_norm, c["grad_norm"][i].get<double>(), 1e-5 * c["grad_norm"][i].get<double>())
            << "step " << s;
        EXPECT_EQ(result->tokens, c["valid"][i].get<std::int64_t>());
        if (s > 0) continue;
        for (const FlatEntry& entry : trainer.flat().entries()) {
          double norm = trainer.kept_gradients().at(entry.name).norm().item<double>();
          EXPECT_NEAR(norm, c["gradient_norms"][entry.name].get<double>(), 1e-5 * result->grad_norm) << entry.name;
        }
      }
      auto weights = trainer.whole_weights();
      ASSERT_TRUE(weights);
      for (const FlatEntry& entry : trainer.flat().entries()) {
        // The bias of GPT-2's keys moves every score of a query alike, so its gradient is rounding alone, which AdamW
        // scales up.
        if (entry.name.ends_with("c_attn.bias")) continue;
        const Json& final = c["final"][entry.name];
        at::Tensor weight = weights->at(entry.name).to(at::kDouble);
        EXPECT_NEAR(weight.norm().item<double>(), final["norm"].get<double>(),
                    1e-5 + 4 * final["norm_spread"].get<double>())
            << entry.name;
        EXPECT_NEAR(weight.sum().item<double>(), final["sum"].get<double>(),
                    2e-4 + 4 * final["sum_spread"].get<double>())
            << entry.name;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Models, Parity,
                         testing::Values("llama-untied", "llama-tied-gqa", "llama-gqa-untied", "gpt2-tied",
                                         "gpt2-untied"),
                         [](const auto& each) {
                           std::string text = each.param;
                           std::replace(text.begin(), text.end(), '-', '_');
                           return text;
                         });

}  // namespace
}  // namespace yoke
