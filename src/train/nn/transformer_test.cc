#include "train/nn/transformer.h"

#include <map>

#include "core/parallel/model_parameters.h"
#include "train/nn/test_functions.h"
#include "train/nn/weight_access.h"

namespace yoke {
namespace {

Model shape(Family family, bool tied) {
  return {.family = family,
          .layers = 2,
          .hidden = 24,
          .heads = 4,
          .kv_heads = family == Family::llama ? 2 : 4,
          .head_dim = 6,
          .ffn = 40,
          .vocab = 37,
          .max_sequence = 16,
          .tied = tied};
}

// The same numbers in every type: those that the narrowest holds.
std::shared_ptr<Transformer> make(const Model& model, at::ScalarType type, at::ScalarType narrowest,
                                  Recompute recompute = Recompute::none) {
  auto transformer = make_transformer(model, {type, at::kCPU, recompute});
  std::map<std::string, at::Tensor> by_name(transformer->ordered_parameters().begin(),
                                            transformer->ordered_parameters().end());
  at::manual_seed(7);
  fresh_parameters(*transformer, 5, [&](const std::string& name, const at::Tensor& values) {
    at::NoGradGuard no_grad;
    by_name.at(name).copy_((values + at::randn_like(values) * 0.1).to(narrowest));
  });
  return transformer;
}

struct Tokens {
  at::Tensor inputs, targets;
  Tokens() {
    at::manual_seed(3);
    inputs = at::randint(0, 37, {3, 16}, at::kLong);
    targets = at::randint(0, 37, {3, 16}, at::kLong);
    targets[1].slice(0, 0, 9).fill_(-100);
  }
};

class TransformerTest : public testing::TestWithParam<std::tuple<Family, bool, at::ScalarType>> {
 protected:
  const Model model = shape(std::get<0>(GetParam()), std::get<1>(GetParam()));
  const at::ScalarType type = std::get<2>(GetParam());
  const Tokens tokens;
};

// What the plan knows of a model is what the engine builds.
TEST_P(TransformerTest, HasTheParametersThatAreKnownBefore) {
  auto transformer = make_transformer(model, {type, at::kCPU, Recompute::none});
  const NamedParameters& built = transformer->ordered_parameters();
  const std::vector<ParameterSize> known = model_parameters(model);
  ASSERT_EQ(built.size(), known.size());
  for (std::size_t i = 0; i < built.size(); ++i) {
    EXPECT_EQ(built[i].first, known[i].name);
    EXPECT_EQ(built[i].second.numel(), known[i].numel) << known[i].name;
  }
}

INSTANTIATE_TEST_SUITE_P(All, TransformerTest,
                         testing::Combine(testing::Values(Family::llama, Family::gpt2), testing::Bool(),
                                          testing::Values(at::kFloat, at::kBFloat16, at::kHalf)),
                         [](const auto& each) {
                           return std::string(name(std::get<0>(each.param))) + (std::get<1>(each.param) ? "Tied" : "") +
                                  c10::toString(std::get<2>(each.param));
                         });

// Loss and gradients of the model in its type against the same weights in fp64, with a loss scale as fp16 needs.
TEST_P(TransformerTest, GradientsEqualThoseInFp64) {
  const double loss_scale = 1024, counted = 39;
  auto exact = make(model, at::kDouble, type);
  at::Tensor expected = exact->loss(tokens.inputs, tokens.targets, 1 / counted);
  expected.backward();
  for (Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
    SCOPED_TRACE(name(recompute));
    auto ours = make(model, type, type, recompute);
    at::Tensor loss = ours->loss(tokens.inputs, tokens.targets, loss_scale / counted);
    EXPECT_NEAR(loss.item<double>() / loss_scale / expected.item<double>(), 1, tolerance(type, 1));
    loss.backward();
    for (std::size_t i = 0; i < ours->ordered_parameters().size(); ++i) {
      const auto& [parameter, value] = ours->ordered_parameters()[i];
      at::Tensor grad = value.grad(), reference = exact->ordered_parameters()[i].second.grad();
      ASSERT_TRUE(grad.defined()) << parameter;
      if (parameter.ends_with("c_attn.bias")) {  // a key bias moves all scores alike: its gradient is rounding only
        at::Tensor chosen = at::tensor({0, 2}, at::kLong);
        grad = grad.view({3, -1}).index_select(0, chosen), reference = reference.view({3, -1}).index_select(0, chosen);
      }
      // The residual stream is rounded some times in each layer on the way there and back.
      EXPECT_LT(relative_error(grad.to(at::kDouble) / loss_scale, reference), tolerance(type, 12)) << parameter;
    }
    EXPECT_LT(relative_error(ours->logits(tokens.inputs), exact->logits(tokens.inputs)), tolerance(type, 6));
  }
}

// The values of weights that are not there, by where they belong.
std::map<const void*, at::Tensor> absent;

void bring(const at::Tensor& weight) {
  auto found = absent.find(weight.const_data_ptr());
  if (found != absent.end()) weight.detach().copy_(found->second);
}

// Weights that are in memory only after they were announced, and are gone again before backward.
TEST_P(TransformerTest, WeightsAreAnnouncedBeforeTheyAreRead) {
  auto whole = make(model, type, type);
  at::Tensor expected = whole->loss(tokens.inputs, tokens.targets, 1);
  expected.backward();
  for (Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
    SCOPED_TRACE(name(recompute));
    auto ours = make(model, type, type, recompute);
    for (const auto& [parameter, value] : ours->ordered_parameters())
      absent[value.const_data_ptr()] = value.detach().clone();
    auto take_away = [&] {
      for (const auto& [parameter, value] : ours->ordered_parameters())
        value.detach().fill_(std::numeric_limits<double>::quiet_NaN());
    };
    weight_listener = &bring;
    take_away();
    at::Tensor loss = ours->loss(tokens.inputs, tokens.targets, 1);
    take_away();
    loss.backward();
    weight_listener = nullptr;
    absent.clear();
    EXPECT_EQ(loss.item<double>(), expected.item<double>());
    for (std::size_t i = 0; i < ours->ordered_parameters().size(); ++i) {
      const auto& [parameter, value] = ours->ordered_parameters()[i];
      EXPECT_TRUE(at::equal(value.grad(), whole->ordered_parameters()[i].second.grad())) << parameter;
    }
  }
}

// Whatever is frozen, the rest gets the gradients that it gets without.
TEST_P(TransformerTest, FrozenParametersGetNoGradient) {
  auto whole = make(model, type, type);
  whole->loss(tokens.inputs, tokens.targets, 1).backward();
  auto frozen_by = [&](const std::string& part, bool all_but) {
    for (Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full}) {
      auto ours = make(model, type, type, recompute);
      int trained = 0;
      for (const auto& [parameter, value] : ours->ordered_parameters()) {
        at::Tensor leaf = value;
        leaf.requires_grad_((parameter.find(part) == std::string::npos) != all_but);
        trained += leaf.requires_grad() ? 1 : 0;
      }
      ASSERT_GT(trained, 0);
      ours->loss(tokens.inputs, tokens.targets, 1).backward();
      for (std::size_t i = 0; i < ours->ordered_parameters().size(); ++i) {
        const auto& [parameter, value] = ours->ordered_parameters()[i];
        ASSERT_EQ(value.grad().defined(), value.requires_grad()) << parameter;
        if (value.requires_grad()) {
          EXPECT_TRUE(at::equal(value.grad(), whole->ordered_parameters()[i].second.grad())) << parameter;
        }
      }
    }
  };
  const bool llama = model.family == Family::llama;
  for (bool all_but : {false, true}) {
    frozen_by(llama ? "embed_tokens" : "wte", all_but);
    frozen_by(llama ? "layers.0." : "h.0.", all_but);
    frozen_by(llama ? "norm" : "ln_", all_but);
    frozen_by(llama ? "down_proj" : "c_proj", all_but);
  }
}

}  // namespace
}  // namespace yoke
