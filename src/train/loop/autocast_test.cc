#include "train/loop/autocast.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/optim/sgd.h>

#include <numeric>
#include <thread>

#include "train/comm/memory.h"
#include "train/comm/shared_memory.h"
#include "train/comm/test_processes.h"
#include "train/loop/data_parallel_module.h"
#include "train/parallel/flat_parameters.h"

namespace yoke {
namespace {

namespace nn = torch::nn;

constexpr std::int64_t rows = 24, steps = 4;

struct Net : nn::Module {
  Net() {
    layers = register_module("layers", nn::Sequential(nn::Linear(8, 16), nn::LayerNorm(nn::LayerNormOptions({16})),
                                                      nn::GELU(), nn::Linear(16, 16), nn::GELU()));
    head = register_parameter("head", at::empty({5, 16}));
    at::NoGradGuard no_grad;
    for (auto& item : named_parameters()) {
      auto generator = at::make_generator<at::CPUGeneratorImpl>(std::hash<std::string>()(item.key()));
      item.value().copy_(at::randn(item.value().sizes(), generator) * 0.3);
    }
  }
  // The head is used twice.
  at::Tensor loss(const at::Tensor& x) {
    at::Tensor scores = layers->forward(x).matmul(head.t());
    computed = scores.scalar_type();
    return scores.matmul(head).to(at::kFloat).square().mean();
  }
  nn::Sequential layers{nullptr};
  at::Tensor head;
  at::ScalarType computed = at::kFloat;
};

// One rank's input overflows fp16 in this step, if wanted.
constexpr std::int64_t wild_step = 2;

at::Tensor inputs(std::int64_t step, bool wild) {
  at::Tensor x = at::randn({rows, 8}, at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(step + 1)));
  if (wild && step == wild_step) x[rows / 2].fill_(1e5);
  return x;
}

std::vector<at::Tensor> weights_of(const Net& net) {
  std::vector<at::Tensor> weights;
  for (const at::Tensor& parameter : net.parameters()) weights.push_back(parameter.detach().clone());
  return weights;
}

torch::optim::SGDOptions sgd() { return torch::optim::SGDOptions(0.1).momentum(0.9); }

// One process, with libtorch's own means only; a wild step is left out.
std::vector<at::Tensor> one_process(at::ScalarType type, bool wild) {
  Net net;
  torch::optim::SGD optimizer(net.parameters(), sgd());
  for (std::int64_t s = 0; s < steps; ++s) {
    if (wild && s == wild_step) continue;
    at::autocast::set_autocast_enabled(at::kCPU, type != at::kFloat);
    if (type != at::kFloat) at::autocast::set_autocast_dtype(at::kCPU, type);
    at::Tensor loss = net.loss(inputs(s, wild));
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    optimizer.zero_grad();
    loss.backward();
    optimizer.step();
  }
  return weights_of(net);
}

struct Outcome {
  std::vector<at::Tensor> weights;
  std::vector<double> norms;
  std::int64_t skipped = 0;
  double scale = 0;
};

void train_rank(Job& job, at::ScalarType type, bool wild, int zero, double loss_scale, Outcome& outcome) {
  at::set_num_threads(1);
  Net net;
  auto wrapped = DataParallelModule::wrap(
      job, net, {.bucket_bytes = 400, .zero = zero, .least_unit_bytes = 100, .loss_scale = loss_scale});
  ASSERT_TRUE(wrapped) << wrapped.error().what;
  DataParallelModule& parallel = **wrapped;
  torch::optim::SGD optimizer(parallel.parameters(), sgd());
  for (std::int64_t s = 0; s < steps; ++s) {
    at::Tensor loss;
    {
      Autocast autocast(type);
      std::int64_t share = rows / job.size();
      loss = net.loss(inputs(s, wild).narrow(0, job.rank() * share, share));
    }
    EXPECT_EQ(net.computed, type);
    EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
    ASSERT_TRUE(parallel.backward(loss));
    auto norm = parallel.clip_gradients(1e9);
    ASSERT_TRUE(norm);
    outcome.norms.push_back(*norm);
    ASSERT_TRUE(parallel.step(optimizer));
  }
  EXPECT_EQ(parallel.flat().value_options().dtype(), at::kFloat);
  outcome.skipped = parallel.skipped_steps();
  outcome.scale = parallel.loss_scale();
  ASSERT_TRUE(parallel.gather_parameters());
  outcome.weights = weights_of(net);
}

std::vector<Outcome> train(int ranks, at::ScalarType type, bool wild, int zero, double loss_scale) {
  auto communicators = thread_group("data", ranks, Seconds(60));
  std::vector<Outcome> outcomes(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < outcomes.size(); ++r)
    threads.emplace_back([&, r] {
      train_rank(*Job::from_communicator(std::move(communicators[r])), type, wild, zero, loss_scale, outcomes[r]);
    });
  for (std::thread& thread : threads) thread.join();
  return outcomes;
}

double distance(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  EXPECT_EQ(a.size(), b.size());
  double worst = 0;
  for (std::size_t i = 0; i < std::min(a.size(), b.size()); ++i)
    worst = std::max(worst, ((a[i] - b[i]).norm() / b[i].norm()).item<double>());
  return worst;
}

void expect_equal_bits(const std::vector<Outcome>& outcomes) {
  for (const Outcome& other : outcomes) {
    ASSERT_EQ(other.weights.size(), outcomes[0].weights.size());
    for (std::size_t i = 0; i < other.weights.size(); ++i)
      EXPECT_TRUE(at::equal(other.weights[i], outcomes[0].weights[i]));
  }
}

TEST(Autocast, EqualsOneProcessInEveryStage) {
  std::vector<at::Tensor> exact = one_process(at::kFloat, false);
  for (at::ScalarType type : {at::kBFloat16, at::kHalf}) {
    std::vector<at::Tensor> wanted = one_process(type, false);
    // 16 bits cost so much; what the ranks' rounding of partial sums costs is no more.
    double cost = distance(wanted, exact);
    EXPECT_GT(cost, 1e-6);
    EXPECT_LT(cost, 0.03);
    for (int ranks : {1, 2, 3})
      for (int zero : {0, 1, 2, 3}) {
        SCOPED_TRACE(fmt::format("{} ranks {} zero {}", c10::toString(type), ranks, zero));
        auto outcomes = train(ranks, type, false, zero, type == at::kHalf ? 1024 : 0);
        expect_equal_bits(outcomes);
        EXPECT_LT(distance(outcomes[0].weights, wanted), 2 * cost);
        EXPECT_EQ(outcomes[0].skipped, 0);
      }
  }
}

TEST(Autocast, AnOverflowOnOneRankSkipsTheStepOnAll) {
  std::vector<at::Tensor> wanted = one_process(at::kHalf, true);
  for (int ranks : {1, 2, 3})
    for (int zero : {0, 1, 2, 3}) {
      SCOPED_TRACE(fmt::format("ranks {} zero {}", ranks, zero));
      auto outcomes = train(ranks, at::kHalf, true, zero, 1024);
      expect_equal_bits(outcomes);
      for (const Outcome& outcome : outcomes) {
        EXPECT_EQ(outcome.skipped, 1);
        EXPECT_EQ(outcome.scale, 512);
        ASSERT_EQ(outcome.norms.size(), std::size_t{steps});
        for (std::int64_t s = 0; s < steps; ++s)
          EXPECT_EQ(std::isfinite(outcome.norms[static_cast<std::size_t>(s)]), s != wild_step) << "step " << s;
      }
      EXPECT_LT(distance(outcomes[0].weights, wanted), 0.01);
    }
}

// Nothing in 16 bits outlives a step: not with ZeRO 3, and not without.
TEST(Autocast, KeepsNoConvertedParameters) {
  for (int zero : {0, 3}) {
    // In a process of its own, whose memory alone is counted.
    auto codes = run_processes(1, Seconds(60), [&](Communicator&) {
      at::set_num_threads(1);
      install_counting_allocator();
      auto job = Job::from_communicator(std::move(thread_group("data", 1, Seconds(1)).front()));
      Net net;
      auto parallel = DataParallelModule::wrap(*job, net, {.zero = zero});
      if (!parallel) return 1;
      torch::optim::SGD optimizer((*parallel)->parameters(), 0.1);
      auto bytes_after_steps = [&](bool mixed) {
        for (int s = 0; s < 2; ++s) {
          std::optional<Autocast> autocast;
          if (mixed) autocast.emplace(at::kBFloat16);
          at::Tensor loss = net.loss(inputs(s, false));
          autocast.reset();
          if (!(*parallel)->backward(loss) || !(*parallel)->step(optimizer)) return std::int64_t{-1};
        }
        auto now = memory_counts().now;
        return std::accumulate(now.begin(), now.end(), std::int64_t{0});
      };
      std::int64_t plain = bytes_after_steps(false);
      return plain > 0 && bytes_after_steps(true) == plain ? 0 : 2;
    });
    EXPECT_EQ(codes, std::vector<int>{0}) << "zero " << zero;
  }
}

TEST(Autocast, LeavesThingsAsTheyWere) {
  EXPECT_FALSE(at::autocast::is_autocast_enabled(at::kCPU));
  {
    Autocast outer(at::kBFloat16);
    EXPECT_EQ(at::mm(at::ones({2, 2}), at::ones({2, 2})).scalar_type(), at::kBFloat16);
    {
      Autocast inner(at::kHalf);
      EXPECT_EQ(at::mm(at::ones({2, 2}), at::ones({2, 2})).scalar_type(), at::kHalf);
      EXPECT_FALSE(at::autocast::is_autocast_cache_enabled());
    }
    EXPECT_EQ(at::mm(at::ones({2, 2}), at::ones({2, 2})).scalar_type(), at::kBFloat16);
  }
  EXPECT_EQ(at::mm(at::ones({2, 2}), at::ones({2, 2})).scalar_type(), at::kFloat);
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
}

TEST(Autocast, ALossScaleThatNoScalerCanHaveIsAnError) {
  auto communicators = thread_group("data", 1, Seconds(1));
  auto job = Job::from_communicator(std::move(communicators[0]));
  Net net;
  for (double scale : {-1.0, 0.5, 1e9, std::nan("")}) {
    auto wrapped = DataParallelModule::wrap(*job, net, {.loss_scale = scale});
    ASSERT_FALSE(wrapped);
    EXPECT_EQ(wrapped.error().kind, ErrorKind::usage);
  }
}

}  // namespace
}  // namespace yoke
