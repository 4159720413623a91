// The truth test (DESIGN 5): every layout equals one rank. Loss, gradient norm, every parameter's gradient, and the
// weights after steps.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "train/comm/shared_memory.h"
#include "train/comm/test_processes.h"
#include "train/loop/trainer.h"

namespace yoke {
namespace {

constexpr std::int64_t sequence = 16, steps = 3;

// The whole matrix (`make truth`) takes minutes; without, every value of every axis, but not every combination.
bool whole_matrix() { return std::getenv("YOKE_WHOLE_TRUTH") != nullptr; }

struct Layout {
  Family family = Family::llama;
  bool tied = false;
  at::ScalarType type = at::kFloat;
  int ranks = 1;
  std::int64_t accumulation = 1;
  Recompute recompute = Recompute::none;
  int zero = 0;
  std::int64_t shard_group = 0;
  bool frozen = false;   // the embedding and some of the second layer
  bool offload = false;  // all that may be, to files
  double clip = 0.5;
  double lr = 1e-2;
  std::int64_t rows = 24;  // divisible by 8 ranks times 3 micro-batches
};

std::string text(const Layout& l) {
  return fmt::format("{}{} {} ranks {} accumulation {} recompute {} zero {} shard group {}{}{}{}", name(l.family),
                     l.tied ? " tied" : "", c10::toString(l.type), l.ranks, l.accumulation, name(l.recompute), l.zero,
                     l.shard_group, l.frozen ? " frozen" : "", l.offload ? " offload" : "",
                     l.clip == 0 ? " unclipped" : "");
}

RunSpec spec_of(const Layout& l) {
  RunSpec spec;
  spec.model.shape = {.family = l.family,
                      .layers = 3,
                      .hidden = 24,
                      .heads = 4,
                      .kv_heads = l.family == Family::llama ? 2 : 4,
                      .head_dim = 6,
                      .ffn = 40,
                      .vocab = 37,
                      .max_sequence = sequence,
                      .tied = l.tied};
  spec.data.sequence = sequence;
  spec.train.steps = steps;
  spec.train.global_batch = l.rows;
  spec.train.micro_batch = l.rows / l.ranks / l.accumulation;
  spec.train.recompute = l.recompute;
  spec.train.bucket_mib = 0.004;  // several buckets even in a model this small
  spec.train.first_bucket_mib = 0.001;
  spec.parallel.zero = l.zero;
  spec.parallel.shard_group = l.shard_group;
  spec.train.optimizer.lr = l.lr;
  spec.train.optimizer.clip = l.clip;
  if (l.frozen && l.family == Family::llama) spec.train.freeze = {"model.embed_tokens*", "*.1.self_attn.?_proj.weight"};
  if (l.frozen && l.family == Family::gpt2) spec.train.freeze = {"*wte*", "*.1.ln_2.*"};
  if (l.type == at::kHalf) spec.train.loss_scale.initial = 1024;
  if (l.offload) {
    spec.offload.optimizer = Offload::file;
    if (l.zero == 3) spec.offload.parameters = Offload::file;
    if (l.recompute == Recompute::full) spec.offload.activations = Offload::file;
    spec.offload.path = testing::TempDir();
  }
  return spec;
}

// The rows of one step, whose counted targets differ much from row to row; some rows have none.
Batch global_batch(std::int64_t step, std::int64_t rows) {
  std::mt19937 random(static_cast<unsigned>(step));
  Batch batch{rows, sequence, {}, {}, 0};
  for (std::int64_t r = 0; r < rows; ++r) {
    std::int64_t counted = r % 5 == 0 ? 0 : static_cast<std::int64_t>(random() % (sequence + 1));
    for (std::int64_t i = 0; i < sequence; ++i) {
      batch.inputs.push_back(random() % 37);
      batch.targets.push_back(i < counted ? random() % 37 : ignored_target);
      batch.valid += i < counted ? 1 : 0;
    }
  }
  return batch;
}

Batch part_of(const Batch& whole, int rank, int ranks) {
  Batch part{whole.rows / ranks, sequence, {}, {}, 0};
  auto first = static_cast<std::ptrdiff_t>(rank * part.rows * sequence),
       last = first + static_cast<std::ptrdiff_t>(part.rows * sequence);
  part.inputs.assign(whole.inputs.begin() + first, whole.inputs.begin() + last);
  part.targets.assign(whole.targets.begin() + first, whole.targets.begin() + last);
  for (std::int64_t t : part.targets) part.valid += t == ignored_target ? 0 : 1;
  return part;
}

using Tensors = std::map<std::string, at::Tensor>;  // by parameter

struct Outcome {
  std::vector<StepResult> results;
  Tensors first_gradients, weights;  // of rank 0, in fp64
  bool ranks_equal = true;           // all ranks end with the same bits
};

Tensors in_fp64(const Tensors& tensors) {
  Tensors wide;
  for (const auto& [parameter, values] : tensors) wide[parameter] = values.to(at::kDouble);
  return wide;
}

// One rank of a layout; the tensors of its outcome only on rank 0.
void train_rank(const Layout& l, Communicator& communicator, Outcome& outcome) {
  at::set_num_threads(1);
  RunSpec spec = spec_of(l);
  auto trainer = Trainer::make(spec, communicator, at::kCPU, l.type);
  ASSERT_TRUE(trainer) << trainer.error().what;
  // Weights far from fresh ones, so that norms and biases matter.
  fresh_parameters((*trainer)->model(), 5, [&](const std::string& parameter, const at::Tensor& values) {
    at::Tensor noise = at::empty_like(values).normal_(
        0, 0.1, at::make_generator<at::CPUGeneratorImpl>(std::hash<std::string>()(parameter)));
    ASSERT_TRUE((*trainer)->set_parameter(parameter, values + noise));
  });
  ASSERT_TRUE((*trainer)->publish_parameters());
  (*trainer)->keep_gradients();
  for (std::int64_t s = 0; s < steps; ++s) {
    auto result = (*trainer)->step(s, part_of(global_batch(s, l.rows), communicator.rank(), l.ranks), false);
    ASSERT_TRUE(result) << result.error().what;
    outcome.results.push_back(*result);
    if (s == 0) outcome.first_gradients = in_fp64((*trainer)->kept_gradients());
  }
  auto whole = (*trainer)->whole_weights();
  ASSERT_TRUE(whole) << whole.error().what;
  outcome.weights = in_fp64(*whole);
}

Outcome train(const Layout& l) {
  auto communicators = thread_group("data", l.ranks, Seconds(60));
  std::vector<Outcome> outcomes(static_cast<std::size_t>(l.ranks));
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < outcomes.size(); ++r)
    threads.emplace_back([&, r] { train_rank(l, *communicators[r], outcomes[r]); });
  for (std::thread& thread : threads) thread.join();
  for (const Outcome& other : outcomes)
    for (const auto& [parameter, values] : outcomes[0].weights)
      outcomes[0].ranks_equal = outcomes[0].ranks_equal && other.weights.contains(parameter) &&
                                at::equal(other.weights.at(parameter), values);
  return std::move(outcomes[0]);
}

// Everything that a rank came to, as bytes.
std::string bytes_of(const Outcome& outcome) {
  std::string bytes;
  for (const StepResult& r : outcome.results)
    for (double value : {r.loss, r.grad_norm, r.learning_rate, static_cast<double>(r.tokens)})
      bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
  for (const Tensors* tensors : {&outcome.first_gradients, &outcome.weights})
    for (const auto& [parameter, values] : *tensors) {
      at::Tensor flat = values.contiguous();
      bytes += parameter;
      bytes.append(static_cast<const char*>(flat.const_data_ptr()), flat.nbytes());
    }
  return bytes;
}

double relative_difference(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).norm() / (b.norm() + 1e-30)).item<double>();
}

// Largest relative difference of any single parameter.
double worst_parameter(const Tensors& a, const Tensors& b, bool without_key_bias = false) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (const auto& [parameter, values] : b) {
    if (!a.contains(parameter)) return 1;
    at::Tensor part = a.at(parameter), expected = values;
    if (without_key_bias && parameter.ends_with("c_attn.bias")) {
      // q and v only: a key bias moves all scores of a query alike, so its gradient is rounding, which AdamW scales up
      // to whole steps. In fp64, where rounding stays far below AdamW's epsilon, it is compared too.
      at::Tensor chosen = at::tensor({0, 2}, at::kLong);
      part = part.view({3, -1}).index_select(0, chosen), expected = expected.view({3, -1}).index_select(0, chosen);
    }
    worst = std::max(worst, relative_difference(part, expected));
  }
  return worst;
}

struct Tolerance {
  double loss, norm, gradient, weight;
};

// What rounding explains: in fp64 nothing but the order of sums; in 16 bits also the rounding of each micro-batch's
// weight gradients.
Tolerance tolerance(at::ScalarType type) {
  if (type == at::kDouble) return {1e-13, 1e-12, 1e-10, 1e-11};
  if (type == at::kFloat) return {1e-6, 2e-6, 2e-5, 1e-5};
  if (type == at::kHalf) return {5e-4, 2.5e-3, 1e-2, 0 /* see below */};
  return {2e-3, 1e-2, 3e-2, 0};
}

void expect_equal(const Layout& l, const Outcome& outcome, const Outcome& reference, Tolerance t) {
  SCOPED_TRACE(text(l));
  ASSERT_EQ(outcome.results.size(), reference.results.size());
  EXPECT_TRUE(outcome.ranks_equal);
  for (std::size_t s = 0; s < outcome.results.size(); ++s) {
    EXPECT_NEAR(outcome.results[s].loss, reference.results[s].loss, t.loss * reference.results[s].loss) << "step " << s;
    EXPECT_NEAR(outcome.results[s].grad_norm, reference.results[s].grad_norm, t.norm * reference.results[s].grad_norm)
        << "step " << s;
    EXPECT_EQ(outcome.results[s].tokens, reference.results[s].tokens);
  }
  EXPECT_LT(worst_parameter(outcome.first_gradients, reference.first_gradients), t.gradient);
  EXPECT_LT(worst_parameter(outcome.weights, reference.weights, l.type != at::kDouble), t.weight);
}

class Truth : public testing::TestWithParam<std::tuple<Family, bool, at::ScalarType>> {};

// What differs from `base` only in how it is laid out.
std::vector<Layout> layouts_of(const Layout& base) {
  std::vector<Layout> layouts;
  bool whole = whole_matrix(), special = base.frozen || base.clip == 0;
  std::vector<std::int64_t> accumulations = {1, 3};
  if (whole) accumulations.push_back(4);
  auto add = [&](int ranks, std::int64_t shard_group, std::int64_t accumulation, Recompute recompute, int zero) {
    Layout layout = base;
    layout.ranks = ranks;
    layout.shard_group = shard_group;
    layout.accumulation = accumulation;
    layout.recompute = recompute;
    layout.zero = zero;
    layouts.push_back(layout);
  };
  for (int ranks : {1, 2, 3, 4, 8})
    for (std::int64_t accumulation : accumulations)
      for (Recompute recompute : {Recompute::none, Recompute::selective, Recompute::full})
        for (int zero : {0, 1, 2, 3}) {
          if (!whole && recompute != Recompute::none && (ranks != 3 || zero % 3 != 0)) continue;
          if (!whole && special && (ranks != 3 || accumulation != 3 || recompute != Recompute::none)) continue;
          add(ranks, 0, accumulation, recompute, zero);
        }
  for (auto [ranks, shard_group] : {std::pair(4, 2), {8, 2}, {8, 4}, {4, 1}})
    for (int zero : {1, 2, 3})
      for (std::int64_t accumulation : accumulations) {
        if (!whole && (accumulation == 1 || (special && ranks == 8))) continue;
        add(ranks, shard_group, accumulation, Recompute::none, zero);
      }
  for (int ranks : {1, 3})
    for (int zero : {0, 1, 2, 3})
      for (Recompute recompute : {Recompute::none, Recompute::full}) {
        if (!whole && (ranks == 1 || zero % 3 != 0)) continue;
        add(ranks, 0, 3, recompute, zero);
        layouts.back().offload = true;
      }
  return layouts;
}

TEST_P(Truth, EveryLayoutEqualsOneRank) {
  auto [family, tied, type] = GetParam();
  Layout plain{.family = family, .tied = tied, .type = type};
  // Smaller in 16 bits, where the later steps would otherwise show how rounding is amplified and little else.
  if (type == at::kBFloat16 || type == at::kHalf) plain.lr = 2e-3;
  if (whole_matrix()) plain.rows = 96;  // divisible by 8 ranks times 4 micro-batches too
  Layout frozen = plain, unclipped = plain;
  frozen.frozen = true;
  unclipped.clip = 0;
  std::size_t count = 0;
  for (const Layout& base : {plain, frozen, unclipped}) {
    Outcome reference = train(base);
    ASSERT_EQ(reference.results.size(), std::size_t{steps});
    EXPECT_EQ(reference.results[0].tokens, global_batch(0, base.rows).valid);
    Tolerance t = tolerance(type);
    if (type == at::kBFloat16 || type == at::kHalf) {
      // AdamW turns the rounding of small gradients into whole steps, so the yardstick for 16-bit weights is what 16
      // bits themselves cost: the distance from one rank in fp32. Two runs that are both that far from it are at most
      // twice as far from each other.
      Layout exact = base;
      exact.type = at::kFloat;
      t.weight = 2 * worst_parameter(reference.weights, train(exact).weights, true);
      EXPECT_LT(t.weight, 0.1);
    }
    std::vector<Layout> layouts = layouts_of(base);
    for (const Layout& layout : layouts) expect_equal(layout, train(layout), reference, t);
    count += layouts.size();
  }
  RecordProperty("layouts", static_cast<int>(count));
}

INSTANTIATE_TEST_SUITE_P(All, Truth,
                         testing::Combine(testing::Values(Family::llama, Family::gpt2), testing::Bool(),
                                          testing::Values(at::kDouble, at::kFloat, at::kBFloat16, at::kHalf)),
                         [](const auto& each) {
                           return fmt::format("{}{}{}", name(std::get<0>(each.param)),
                                              std::get<1>(each.param) ? "Tied" : "",
                                              c10::toString(std::get<2>(each.param)));
                         });

// What lies in files comes to the same bits as what lies in memory.
TEST(Truth, OffloadedEqualsInMemory) {
  for (Layout layout :
       {Layout{.type = at::kBFloat16, .ranks = 2, .accumulation = 3, .recompute = Recompute::full, .zero = 3},
        Layout{.ranks = 1, .recompute = Recompute::full}, Layout{.ranks = 3, .zero = 3, .frozen = true},
        Layout{.family = Family::gpt2, .type = at::kHalf, .ranks = 2, .zero = 1}}) {
    SCOPED_TRACE(text(layout));
    std::string expected = bytes_of(train(layout));
    layout.offload = true;
    EXPECT_EQ(bytes_of(train(layout)) == expected, true);
  }
}

// Ranks as processes come to the same bits as ranks as threads.
TEST(Truth, ProcessesEqualThreads) {
  for (Layout layout : {Layout{.ranks = 2, .accumulation = 3}, Layout{.ranks = 3, .zero = 1},
                        Layout{.tied = true, .type = at::kBFloat16, .ranks = 2, .accumulation = 3, .zero = 2},
                        Layout{.family = Family::gpt2, .type = at::kBFloat16, .ranks = 3, .zero = 3},
                        Layout{.type = at::kHalf, .ranks = 2, .recompute = Recompute::full, .zero = 3},
                        Layout{.tied = true, .ranks = 4, .zero = 3, .shard_group = 2, .frozen = true}}) {
    SCOPED_TRACE(text(layout));
    std::string expected = bytes_of(train(layout));
    auto codes = run_processes(layout.ranks, Seconds(60), [&](Communicator& communicator) {
      Outcome outcome;
      train_rank(layout, communicator, outcome);
      return bytes_of(outcome) == expected ? 0 : 1;
    });
    EXPECT_EQ(codes, std::vector<int>(static_cast<std::size_t>(layout.ranks), 0));
  }
}

// The reference itself against libtorch's own operations: one step's loss and gradients by plain autograd in fp64.
TEST(Truth, OneRankEqualsPlainAutograd) {
  Layout l{.family = Family::llama, .tied = true, .type = at::kDouble};
  RunSpec spec = spec_of(l);
  auto communicators = thread_group("data", 1, Seconds(60));
  auto trainer = Trainer::make(spec, *communicators[0], at::kCPU, at::kDouble);
  ASSERT_TRUE(trainer);
  std::map<std::string, at::Tensor> p;
  fresh_parameters((*trainer)->model(), 3, [&](const std::string& parameter, const at::Tensor& values) {
    at::Tensor v = values.to(at::kDouble) + at::randn(values.sizes(), at::kDouble) * 0.1;
    ASSERT_TRUE((*trainer)->set_parameter(parameter, v));
    p[parameter] = v.clone().requires_grad_(true);
  });
  ASSERT_TRUE((*trainer)->publish_parameters());
  (*trainer)->keep_gradients();
  const std::int64_t rows = l.rows;
  Batch batch = global_batch(0, rows);
  auto result = (*trainer)->step(0, batch, false);
  ASSERT_TRUE(result);

  const Model& m = spec.model.shape;
  at::Tensor inputs = at::tensor(batch.inputs, at::kLong).view({rows, sequence}),
             targets = at::tensor(batch.targets, at::kLong);
  auto norm = [&](const at::Tensor& x, const at::Tensor& w) {
    return x * (x.square().mean(-1, true) + m.norm_eps).rsqrt() * w;
  };
  at::Tensor frequency = at::pow(at::scalar_tensor(m.rope_theta, at::kDouble),
                                 -at::arange(0, m.head_dim, 2, at::kDouble) / static_cast<double>(m.head_dim));
  at::Tensor angle = at::outer(at::arange(sequence, at::kDouble), frequency);
  at::Tensor cos = at::cat({angle.cos(), angle.cos()}, 1), sin = at::cat({angle.sin(), angle.sin()}, 1);
  auto rotate = [&](const at::Tensor& x) {
    std::int64_t half = m.head_dim / 2;
    return x * cos + at::cat({-x.narrow(-1, half, half), x.narrow(-1, 0, half)}, -1) * sin;
  };
  auto heads = [&](const at::Tensor& x, std::int64_t n) {
    return x.view({rows, sequence, n, m.head_dim}).transpose(1, 2);
  };
  at::Tensor x = at::embedding(p["model.embed_tokens.weight"], inputs);
  for (std::int64_t i = 0; i < m.layers; ++i) {
    auto w = [&](const char* n) { return p[fmt::format("model.layers.{}.{}.weight", i, n)]; };
    at::Tensor y = norm(x, w("input_layernorm"));
    at::Tensor q = rotate(heads(y.matmul(w("self_attn.q_proj").t()), m.heads)),
               k = rotate(heads(y.matmul(w("self_attn.k_proj").t()), m.kv_heads));
    at::Tensor v = heads(y.matmul(w("self_attn.v_proj").t()), m.kv_heads);
    k = k.repeat_interleave(m.heads / m.kv_heads, 1), v = v.repeat_interleave(m.heads / m.kv_heads, 1);
    at::Tensor scores = q.matmul(k.transpose(2, 3)) / std::sqrt(static_cast<double>(m.head_dim));
    scores = scores.masked_fill(at::ones({sequence, sequence}, at::kBool).triu(1), -INFINITY);
    at::Tensor attended = scores.softmax(-1).matmul(v).transpose(1, 2).reshape({rows, sequence, m.heads * m.head_dim});
    x = x + attended.matmul(w("self_attn.o_proj").t());
    y = norm(x, w("post_attention_layernorm"));
    x = x +
        (at::silu(y.matmul(w("mlp.gate_proj").t())) * y.matmul(w("mlp.up_proj").t())).matmul(w("mlp.down_proj").t());
  }
  at::Tensor logits = norm(x, p["model.norm.weight"]).matmul(p["model.embed_tokens.weight"].t());
  at::Tensor loss =
      at::cross_entropy_loss(logits.view({-1, m.vocab}), targets, {}, at::Reduction::Sum, ignored_target) / batch.valid;
  loss.backward();
  EXPECT_NEAR(result->loss, loss.item<double>(), 1e-12);
  for (const FlatEntry& entry : (*trainer)->flat().entries()) {
    at::Tensor ours = (*trainer)->kept_gradients().at(entry.name);
    EXPECT_LT(relative_difference(ours, p[entry.name].grad()), 1e-10) << entry.name;
  }
}

}  // namespace
}  // namespace yoke
