// The truth test for modules of the user's own: whatever the layout, DataParallelModule comes to the losses, gradient
// norms, gradients, weights and buffers of a plain loop of libtorch on the whole batch. `make truth` runs all
// combinations.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim.h>

#include <map>
#include <numeric>
#include <thread>
#include <unordered_set>

#include "train/comm/shared_memory.h"
#include "train/loop/data_parallel_module.h"
#include "train/parallel/flat_parameters.h"

namespace yoke {
namespace {

namespace nn = torch::nn;

constexpr std::int64_t rows = 48, columns = 12, classes = 5, steps = 3;

bool whole_matrix() { return std::getenv("YOKE_WHOLE_TRUTH") != nullptr; }

struct UserModule : nn::Module {
  // [n, columns] to [n, classes].
  virtual at::Tensor scores(const at::Tensor& x, std::int64_t step) = 0;

  // Summed over the rows.
  at::Tensor loss(const at::Tensor& x, const at::Tensor& y, std::int64_t step) {
    return nn::functional::cross_entropy(scores(x, step), y,
                                         nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
  }
};

// One tensor under two names, and used twice.
struct TiedMlp : UserModule {
  TiedMlp() {
    first = register_module("first", nn::Linear(columns, 7));
    back = register_parameter("back", first->weight);
    last = register_module("last", nn::Linear(columns, classes));
  }
  at::Tensor scores(const at::Tensor& x, std::int64_t) override {
    return last->forward(at::tanh(first->forward(x)).matmul(back));
  }
  nn::Linear first{nullptr}, last{nullptr};
  at::Tensor back;
};

struct ConvNet : UserModule {
  ConvNet() {
    layers = register_module(
        "layers", nn::Sequential(nn::Conv2d(nn::Conv2dOptions(1, 5, 3).padding(1)), nn::BatchNorm2d(5), nn::ReLU(),
                                 nn::Conv2d(nn::Conv2dOptions(5, 3, 2)), nn::Flatten(), nn::Linear(18, classes)));
  }
  at::Tensor scores(const at::Tensor& x, std::int64_t) override { return layers->forward(x.view({-1, 1, 3, 4})); }
  nn::Sequential layers{nullptr};
};

struct Recurrent : UserModule {
  Recurrent() {
    embedding = register_module("embedding", nn::Embedding(11, 6));
    lstm = register_module("lstm", nn::LSTM(nn::LSTMOptions(6, 5).num_layers(2).batch_first(true)));
    head = register_module("head", nn::Linear(5, classes));
  }
  at::Tensor scores(const at::Tensor& x, std::int64_t) override {
    at::Tensor tokens = (x.abs() * 7).to(at::kLong).remainder(11);
    return head->forward(std::get<0>(lstm->forward(embedding->forward(tokens))).select(1, -1));
  }
  nn::Embedding embedding{nullptr};
  nn::LSTM lstm{nullptr};
  nn::Linear head{nullptr};
};

struct Attention : UserModule {
  Attention() {
    in = register_module("in", nn::Linear(3, 6));
    norm = register_module("norm", nn::LayerNorm(nn::LayerNormOptions({6})));
    attention = register_module("attention", nn::MultiheadAttention(6, 2));
    head = register_module("head", nn::Linear(6, classes));
  }
  at::Tensor scores(const at::Tensor& x, std::int64_t) override {
    at::Tensor h = in->forward(x.view({-1, 4, 3})).transpose(0, 1), n = norm->forward(h);
    h = h + std::get<0>(attention->forward(n, n, n));
    return head->forward(h.mean(0));
  }
  nn::Linear in{nullptr}, head{nullptr};
  nn::LayerNorm norm{nullptr};
  nn::MultiheadAttention attention{nullptr};
};

struct Frozen : UserModule {
  Frozen() {
    layers = register_module("layers", nn::Sequential(nn::Linear(columns, 9), nn::Tanh(), nn::Linear(9, 9), nn::Tanh(),
                                                      nn::Linear(9, classes)));
    layers[2]->as<nn::Linear>()->weight.set_requires_grad(false);
    layers[4]->as<nn::Linear>()->bias.set_requires_grad(false);
  }
  at::Tensor scores(const at::Tensor& x, std::int64_t) override { return layers->forward(x); }
  nn::Sequential layers{nullptr};
};

// Another branch each step, and one that is never taken.
struct Branches : UserModule {
  Branches() {
    first = register_module("first", nn::Linear(columns, 8));
    for (int i = 0; i < 3; ++i) branches->push_back(nn::Linear(8, 8));
    register_module("branches", branches);
    last = register_module("last", nn::Linear(8, classes));
  }
  at::Tensor scores(const at::Tensor& x, std::int64_t step) override {
    at::Tensor h = at::tanh(first->forward(x));
    return last->forward(at::tanh(branches[static_cast<std::size_t>(step % 2)]->as<nn::Linear>()->forward(h)));
  }
  nn::Linear first{nullptr}, last{nullptr};
  nn::ModuleList branches;
};

// Fewer parameters than ranks.
struct Tiny : UserModule {
  Tiny() { slope = register_parameter("slope", at::ones({1})); }
  at::Tensor scores(const at::Tensor& x, std::int64_t) override { return x.narrow(1, 0, classes) * slope; }
  at::Tensor slope;
};

enum class Optimizer { sgd, adam, adamw };

struct Layout {
  std::string module = "TiedMlp";
  at::ScalarType type = at::kDouble;
  Optimizer optimizer = Optimizer::sgd;
  double clip = 0;  // 0: clip_gradients() is not called
  int ranks = 1;
  std::int64_t shard_group = 0;
  int zero = 0;
  std::int64_t accumulation = 1;
};

std::string text(const Layout& l) {
  return fmt::format("{} {} optimizer {} clip {} ranks {} shard group {} zero {} accumulation {}", l.module,
                     c10::toString(l.type), static_cast<int>(l.optimizer), l.clip, l.ranks, l.shard_group, l.zero,
                     l.accumulation);
}

// The same weights each time, whichever thread asks.
std::shared_ptr<UserModule> make_module(const Layout& l) {
  std::map<std::string, std::function<std::shared_ptr<UserModule>()>> makers{{"TiedMlp", std::make_shared<TiedMlp>},
                                                                             {"ConvNet", std::make_shared<ConvNet>},
                                                                             {"Recurrent", std::make_shared<Recurrent>},
                                                                             {"Attention", std::make_shared<Attention>},
                                                                             {"Frozen", std::make_shared<Frozen>},
                                                                             {"Branches", std::make_shared<Branches>},
                                                                             {"Tiny", std::make_shared<Tiny>}};
  std::shared_ptr<UserModule> module = makers.at(l.module)();
  module->to(l.type);
  at::NoGradGuard no_grad;
  for (auto& item : module->named_parameters())
    item.value().copy_(at::randn(item.value().sizes(),
                                 at::make_generator<at::CPUGeneratorImpl>(std::hash<std::string>()(item.key())),
                                 at::kDouble) *
                       0.4);
  return module;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const Layout& l, const std::vector<at::Tensor>& parameters) {
  // A gradient that is nothing but rounding (of a key's bias, say) must not become a whole step of Adam: epsilon is far
  // above it.
  constexpr double epsilon = 1e-3;
  if (l.optimizer == Optimizer::adam)
    return std::make_unique<torch::optim::Adam>(parameters, torch::optim::AdamOptions(1e-2).eps(epsilon));
  if (l.optimizer == Optimizer::adamw)
    return std::make_unique<torch::optim::AdamW>(parameters,
                                                 torch::optim::AdamWOptions(1e-2).eps(epsilon).weight_decay(0.1));
  return std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
}

struct Examples {
  at::Tensor x, y;
  Examples part(std::int64_t number, std::int64_t parts) const {
    std::int64_t size = x.size(0) / parts;
    return {x.narrow(0, number * size, size), y.narrow(0, number * size, size)};
  }
};

Examples global_batch(const Layout& l, std::int64_t step) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(step + 1));
  return {at::randn({rows, columns}, generator, at::kDouble).to(l.type),
          at::randint(classes, {rows}, generator, at::kLong)};
}

using Tensors = std::map<std::string, at::Tensor>;

Tensors copies(const torch::OrderedDict<std::string, at::Tensor>& tensors) {
  Tensors copied;
  for (const auto& item : tensors) copied[item.key()] = item.value().detach().to(at::kDouble, false, /*copy=*/true);
  return copied;
}

struct Outcome {
  std::vector<double> losses, norms;
  std::vector<Tensors> gradients;  // by step
  Tensors weights, buffers;
};

// What a user writes without Yoke. Batch norm looks at one rank's micro-batch at a time, so with buffers the reference
// does too, with buffers for each rank.
Outcome plain_loop(const Layout& l) {
  std::shared_ptr<UserModule> module = make_module(l);
  std::vector<at::Tensor> parameters;
  std::vector<std::string> names;  // of a tied parameter the first counts
  std::unordered_set<const void*> seen;
  for (const auto& item : module->named_parameters())
    if (item.value().requires_grad() && seen.insert(item.value().unsafeGetTensorImpl()).second)
      parameters.push_back(item.value()), names.push_back(item.key());
  auto optimizer = make_optimizer(l, parameters);
  std::vector<Tensors> buffers(static_cast<std::size_t>(l.ranks), copies(module->named_buffers()));
  bool by_part = !module->buffers().empty();
  Outcome outcome;
  for (std::int64_t s = 0; s < steps; ++s) {
    for (at::Tensor& parameter : parameters) parameter.mutable_grad() = at::zeros_like(parameter);
    Examples batch = global_batch(l, s);
    double sum = 0;
    std::int64_t pieces = by_part ? l.ranks * l.accumulation : 1;
    for (std::int64_t p = 0; p < pieces; ++p) {
      Tensors& own = buffers[static_cast<std::size_t>(by_part ? p / l.accumulation : 0)];
      {
        at::NoGradGuard no_grad;
        for (auto& item : module->named_buffers()) item.value().copy_(own.at(item.key()));
      }
      Examples piece = batch.part(p, pieces);
      at::Tensor loss = module->loss(piece.x, piece.y, s) / rows;
      loss.backward();
      sum += loss.item<double>();
      own = copies(module->named_buffers());
    }
    outcome.losses.push_back(sum);
    outcome.gradients.emplace_back();
    for (std::size_t i = 0; i < names.size(); ++i)
      outcome.gradients.back()[names[i]] = parameters[i].grad().to(at::kDouble, false, /*copy=*/true);
    if (l.clip > 0) outcome.norms.push_back(nn::utils::clip_grad_norm_(parameters, l.clip));
    optimizer->step();
  }
  outcome.weights = copies(module->named_parameters());
  outcome.buffers = buffers[0];
  return outcome;
}

void train_rank(const Layout& l, Job& job, Outcome& outcome) {
  at::set_num_threads(1);
  std::shared_ptr<UserModule> module = make_module(l);
  // Both ways of scaling, since every rank has as many rows.
  bool average = l.clip > 0;
  auto wrapped = DataParallelModule::wrap(
      job, *module,
      {.gradients = average ? DataParallelOptions::Gradients::average : DataParallelOptions::Gradients::sum,
       .bucket_bytes = 200,  // several units even in modules this small
       .zero = l.zero,
       .shard_group = l.shard_group,
       .least_unit_bytes = 100});
  ASSERT_TRUE(wrapped) << wrapped.error().what;
  DataParallelModule& parallel = **wrapped;
  auto optimizer = make_optimizer(l, parallel.parameters());
  for (std::int64_t s = 0; s < steps; ++s) {
    Examples share = global_batch(l, s).part(job.rank(), l.ranks);
    at::Tensor sum = at::zeros({1}, at::kDouble);
    for (std::int64_t m = 0; m < l.accumulation; ++m) {
      Examples piece = share.part(m, l.accumulation);
      at::Tensor loss = module->loss(piece.x, piece.y, s) / (average ? rows / l.ranks : rows);
      sum += loss.detach() / (average ? l.ranks : 1);
      auto done = parallel.backward(loss, m + 1 == l.accumulation);
      ASSERT_TRUE(done) << done.error().what;
    }
    ASSERT_TRUE(job.sum("loss", sum));
    outcome.losses.push_back(sum.item<double>());
    outcome.gradients.emplace_back();
    const FlatParameters& flat = parallel.flat();
    for (int u = 0; u < flat.unit_count(); ++u) {
      if (!flat.gradient_shard(u).defined()) continue;
      auto gathered = flat.gather("test", u, flat.gradient_shard(u));
      ASSERT_TRUE(gathered);
      for (const auto& [name, gradient] : *gathered)
        outcome.gradients.back()[name] = gradient.to(at::kDouble, false, /*copy=*/true);
    }
    if (l.clip > 0) {
      auto norm = parallel.clip_gradients(l.clip);
      ASSERT_TRUE(norm) << norm.error().what;
      outcome.norms.push_back(*norm);
    }
    auto stepped = parallel.step(*optimizer);
    ASSERT_TRUE(stepped) << stepped.error().what;
  }
  ASSERT_TRUE(parallel.broadcast());
  ASSERT_TRUE(parallel.gather_parameters());
  outcome.weights = copies(module->named_parameters());
  outcome.buffers = copies(module->named_buffers());
  parallel.release_parameters();
}

std::vector<Outcome> train(const Layout& l) {
  auto communicators = thread_group("data", l.ranks, Seconds(60));
  std::vector<Outcome> outcomes(static_cast<std::size_t>(l.ranks));
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < outcomes.size(); ++r)
    threads.emplace_back([&, r] { train_rank(l, *Job::from_communicator(std::move(communicators[r])), outcomes[r]); });
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

// What the order of sums explains. Gradients that are rounding alone are held against the size of the others.
struct Tolerance {
  double loss, gradient, weight;
};
Tolerance tolerance(at::ScalarType type) {
  return type == at::kDouble ? Tolerance{1e-14, 1e-12, 1e-12} : Tolerance{1e-6, 1e-5, 1e-5};
}

double norm_of(const Tensors& tensors) {
  double squares = 0;
  for (const auto& [name, values] : tensors) squares += values.square().sum().item<double>();
  return std::sqrt(squares);
}

void expect_near(const Tensors& got, const Tensors& wanted, double tolerated, const char* what) {
  ASSERT_EQ(got.size(), wanted.size()) << what;
  double least = 0.01 * norm_of(wanted);
  for (const auto& [name, values] : wanted) {
    ASSERT_TRUE(got.contains(name)) << what << " of " << name;
    double difference = (got.at(name) - values).norm().item<double>();
    EXPECT_LE(difference, tolerated * std::max(least, values.norm().item<double>())) << what << " of " << name;
  }
}

void expect_equal(const std::vector<Outcome>& ranks, const Outcome& wanted, const Tolerance& t) {
  const Outcome& got = ranks[0];
  ASSERT_EQ(got.weights.size(), wanted.weights.size());
  for (const Outcome& other : ranks)
    for (const auto& [name, values] : got.weights) EXPECT_TRUE(at::equal(values, other.weights.at(name))) << name;
  ASSERT_EQ(got.losses.size(), std::size_t{steps});
  ASSERT_EQ(got.norms.size(), wanted.norms.size());
  for (std::size_t s = 0; s < got.losses.size(); ++s) {
    EXPECT_NEAR(got.losses[s], wanted.losses[s], t.loss * (1 + wanted.losses[s])) << "step " << s;
    if (!wanted.norms.empty()) {
      EXPECT_NEAR(got.norms[s], wanted.norms[s], t.gradient * wanted.norms[s]) << "step " << s;
    }
    expect_near(got.gradients[s], wanted.gradients[s], t.gradient, "gradient");
  }
  expect_near(got.weights, wanted.weights, t.weight, "weight");
  expect_near(got.buffers, wanted.buffers, t.weight, "buffer");
}

struct Place {
  int ranks, zero;
  std::int64_t shard_group;
};

std::vector<Place> places() {
  std::vector<Place> all;
  for (int ranks : {1, 2, 3, 4})
    for (int zero : {0, 1, 2, 3}) all.push_back({ranks, zero, 0});
  for (int zero : {1, 2, 3})
    for (std::int64_t shard_group : {1, 2}) all.push_back({4, zero, shard_group});
  return all;
}

class ModuleTruth : public testing::TestWithParam<const char*> {};

TEST_P(ModuleTruth, EqualsPlainLibtorchOnTheWholeBatch) {
  std::vector<Layout> styles;
  for (at::ScalarType type : {at::kDouble, at::kFloat})
    for (Optimizer optimizer : {Optimizer::sgd, Optimizer::adam, Optimizer::adamw})
      for (double clip : {0.0, 0.05})
        for (std::int64_t accumulation : {1, 4})
          styles.push_back(
              {.module = GetParam(), .type = type, .optimizer = optimizer, .clip = clip, .accumulation = accumulation});
  std::map<std::string, Outcome> references;
  std::size_t next = 0, number = std::string(GetParam()).size();
  for (Place place : places()) {
    if (!whole_matrix() && ++number % 2 == 0) continue;
    for (std::size_t s = 0; s < styles.size(); ++s) {
      // Otherwise every second place, in another style each.
      if (!whole_matrix() && s != next % styles.size()) continue;
      Layout l = styles[s];
      l.ranks = place.ranks, l.zero = place.zero, l.shard_group = place.shard_group;
      SCOPED_TRACE(text(l));
      Layout same = l;  // layouts that share a reference
      same.zero = 0, same.shard_group = 0;
      if (l.module != "ConvNet") same.ranks = 1, same.accumulation = 1;
      auto [reference, added] = references.try_emplace(text(same));
      if (added) reference->second = plain_loop(l);
      expect_equal(train(l), reference->second, tolerance(l.type));
      if (HasFatalFailure()) return;
      next += 7;
      if (!whole_matrix()) break;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(All, ModuleTruth,
                         testing::Values("TiedMlp", "ConvNet", "Recurrent", "Attention", "Frozen", "Branches", "Tiny"),
                         [](const auto& each) { return std::string(each.param); });

}  // namespace
}  // namespace yoke
