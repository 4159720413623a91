// Ranks with different numbers of examples: whatever the policy and the ZeRO stage, no rank waits in vain, no example
// counts twice, and the weights are those of one process on all examples that count.
#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include <thread>

#include "train/comm/shared_memory.h"
#include "train/loop/data_parallel_module.h"
#include "train/loop/epoch_sampler.h"

namespace yoke {
namespace {

namespace nn = torch::nn;
using Gradients = DataParallelOptions::Gradients;
using Counts = std::vector<std::int64_t>;

constexpr std::int64_t epochs = 2, batch = 2, seed = 3;

struct Net : nn::Module {
  Net() {
    layers = register_module(
        "layers", nn::Sequential(nn::Linear(6, 7), nn::Tanh(), nn::Linear(7, 7), nn::Tanh(), nn::Linear(7, 3)));
    to(at::kDouble);
    at::NoGradGuard no_grad;
    for (auto& item : named_parameters()) {
      auto generator = at::make_generator<at::CPUGeneratorImpl>(std::hash<std::string>()(item.key()));
      item.value().copy_(at::randn(item.value().sizes(), generator, at::kDouble) * 0.5);
    }
  }
  // By example.
  at::Tensor losses(const at::Tensor& x) { return layers->forward(x).square().sum(1); }
  nn::Sequential layers{nullptr};
};

// The examples of a rank with these numbers.
at::Tensor inputs(int rank, const Counts& examples) {
  std::vector<at::Tensor> rows;
  for (std::int64_t example : examples)
    rows.push_back(at::randn({6}, at::make_generator<at::CPUGeneratorImpl>(1000 * (rank + 1) + example), at::kDouble));
  return at::stack(rows);
}

std::vector<at::Tensor> weights_of(const Net& net) {
  std::vector<at::Tensor> weights;
  for (const at::Tensor& parameter : net.parameters()) weights.push_back(parameter.detach().clone());
  return weights;
}

torch::optim::SGDOptions sgd() { return torch::optim::SGDOptions(0.02).momentum(0.9); }

LocalSampler sampler_of(const Counts& counts, int rank, Uneven uneven) {
  auto sampler = LocalSampler::make(counts, batch, seed, rank, uneven);
  EXPECT_TRUE(sampler);
  return *sampler;
}

struct Case {
  Counts counts;
  Uneven uneven = Uneven::join;
  std::int64_t accumulation = 1;
  int zero = 0;
  std::int64_t shard_group = 0;
};

// One process that has everybody's examples.
std::vector<at::Tensor> one_process(const Case& c) {
  Net net;
  torch::optim::SGD optimizer(net.parameters(), sgd());
  std::int64_t batches = sampler_of(c.counts, 0, c.uneven).batches();
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch)
    for (std::int64_t b = 0; b < batches; b += c.accumulation) {
      std::vector<at::Tensor> all;
      for (int rank = 0; rank < static_cast<int>(c.counts.size()); ++rank) {
        LocalSampler sampler = sampler_of(c.counts, rank, c.uneven);
        for (std::int64_t m = b; m < std::min(batches, b + c.accumulation); ++m) {
          Counts examples = sampler.batch(epoch, m);
          examples.resize(static_cast<std::size_t>(sampler.counted(m)));
          if (!examples.empty()) all.push_back(inputs(rank, examples));
        }
      }
      optimizer.zero_grad();
      net.losses(at::cat(all)).mean().backward();
      optimizer.step();
    }
  return weights_of(net);
}

// Several micro-batches to a step; the last step of an epoch may have fewer.
void train_rank(const Case& c, Job& job, std::vector<at::Tensor>& weights) {
  at::set_num_threads(1);
  Net net;
  auto wrapped =
      DataParallelModule::wrap(job, net,
                               {.gradients = c.uneven == Uneven::join ? Gradients::example_mean : Gradients::sum,
                                .bucket_bytes = 200,
                                .zero = c.zero,
                                .shard_group = c.shard_group,
                                .least_unit_bytes = 100});
  ASSERT_TRUE(wrapped) << wrapped.error().what;
  DataParallelModule& parallel = **wrapped;
  torch::optim::SGD optimizer(parallel.parameters(), sgd());
  auto counts = job.gather("examples", c.counts[static_cast<std::size_t>(job.rank())]);
  ASSERT_TRUE(counts);
  EXPECT_EQ(*counts, c.counts);
  LocalSampler sampler = sampler_of(*counts, job.rank(), c.uneven);
  for (std::int64_t epoch = 0; epoch < epochs; ++epoch)
    for (std::int64_t b = 0; b < sampler.batches(); b += c.accumulation) {
      std::int64_t end = std::min(sampler.batches(), b + c.accumulation), in_step = 0;
      for (std::int64_t m = b; m < end; ++m) in_step += sampler.batch_examples(m);
      for (std::int64_t m = b; m < end; ++m) {
        Counts mine = sampler.batch(epoch, m);
        at::Tensor loss;
        if (c.uneven == Uneven::join) {
          auto together = parallel.join(static_cast<std::int64_t>(mine.size()));
          ASSERT_TRUE(together) << together.error().what;
          EXPECT_EQ(*together, sampler.batch_examples(m));
          if (!mine.empty()) loss = net.losses(inputs(job.rank(), mine)).sum();
        } else {
          at::Tensor weight = at::arange(static_cast<std::int64_t>(mine.size())) < sampler.counted(m);
          loss = (net.losses(inputs(job.rank(), mine)) * weight).sum() / in_step;
        }
        auto done = parallel.backward(loss, m + 1 == end);
        ASSERT_TRUE(done) << done.error().what;
      }
      auto norm = parallel.clip_gradients(1e9);
      ASSERT_TRUE(norm) << norm.error().what;
      auto stepped = parallel.step(optimizer);
      ASSERT_TRUE(stepped) << stepped.error().what;
      if (b == 0) net.losses(at::ones({1, 6}, at::kDouble));  // as an evaluation does, on all ranks
    }
  ASSERT_TRUE(parallel.gather_parameters());
  weights = weights_of(net);
}

void run(const Case& c) {
  SCOPED_TRACE(fmt::format("counts {} policy {} accumulation {} zero {} shard group {}", c10::str(c.counts),
                           static_cast<int>(c.uneven), c.accumulation, c.zero, c.shard_group));
  auto communicators = thread_group("data", static_cast<int>(c.counts.size()), Seconds(60));
  std::vector<std::vector<at::Tensor>> weights(c.counts.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < weights.size(); ++r)
    threads.emplace_back([&, r] { train_rank(c, *Job::from_communicator(std::move(communicators[r])), weights[r]); });
  for (std::thread& thread : threads) thread.join();
  std::vector<at::Tensor> wanted = one_process(c);
  for (const auto& mine : weights) {
    ASSERT_EQ(mine.size(), wanted.size());
    for (std::size_t i = 0; i < wanted.size(); ++i)
      EXPECT_LT((mine[i] - wanted[i]).abs().max().item<double>(), 1e-13) << "parameter " << i;
  }
}

void run_all(Uneven uneven, const std::vector<Counts>& all) {
  for (const Counts& counts : all)
    for (std::int64_t accumulation : {1, 3})
      for (int zero : {0, 1, 2, 3}) {
        run({counts, uneven, accumulation, zero});
        if (counts.size() == 4 && zero > 0) run({counts, uneven, accumulation, zero, 2});
      }
}

TEST(Uneven, JoinEqualsOneProcess) {
  run_all(Uneven::join, {{5, 3, 0}, {0, 2, 5, 1}, {0, 0, 7, 2}, {0, 5}, {4, 4, 4}});
}

TEST(Uneven, PadEqualsOneProcess) { run_all(Uneven::pad, {{5, 3, 1}, {1, 2, 5, 1}}); }

TEST(Uneven, DropEqualsOneProcess) { run_all(Uneven::drop, {{5, 3, 1}, {3, 9, 5, 4}}); }

// Streams, of which nobody knows the length: until all have run out, and ranks may find more after they had none.
TEST(Uneven, JoinEndsWhereAllHaveRunOut) {
  for (int zero : {0, 1, 2, 3}) {
    auto communicators = thread_group("data", 3, Seconds(60));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 3; ++rank)
      threads.emplace_back([&, rank] {
        auto job = Job::from_communicator(std::move(communicators[static_cast<std::size_t>(rank)]));
        Net net;
        auto parallel = DataParallelModule::wrap(
            *job, net, {.gradients = Gradients::example_mean, .zero = zero, .least_unit_bytes = 100});
        ASSERT_TRUE(parallel);
        torch::optim::SGD optimizer((*parallel)->parameters(), sgd());
        const std::vector<Counts> streams{{2, 0, 1}, {1, 3, 1, 0, 2}, {}};  // examples by step
        const Counts& mine = streams[static_cast<std::size_t>(rank)];
        Counts totals;
        for (std::size_t step = 0;; ++step) {
          std::int64_t examples = step < mine.size() ? mine[step] : 0;
          auto together = (*parallel)->join(examples);
          ASSERT_TRUE(together) << together.error().what;
          totals.push_back(*together);
          if (step == 5) break;
          at::Tensor loss;
          if (examples > 0) loss = net.losses(at::ones({examples, 6}, at::kDouble)).sum();
          auto done = (*parallel)->backward(loss);
          ASSERT_TRUE(done) << done.error().what;
          ASSERT_TRUE((*parallel)->step(optimizer));
        }
        EXPECT_EQ(totals, (Counts{3, 3, 2, 0, 2, 0}));
      });
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(Uneven, WrongCallsAreErrors) {
  auto communicators = thread_group("data", 1, Seconds(60));
  auto job = Job::from_communicator(std::move(communicators[0]));
  Net average_net, mean_net;
  auto loss = [](Net& net) { return net.losses(at::ones({1, 6}, at::kDouble)).sum(); };
  auto average = DataParallelModule::wrap(*job, average_net, {});
  auto mean = DataParallelModule::wrap(*job, mean_net, {.gradients = Gradients::example_mean});
  ASSERT_TRUE(average && mean);
  for (const Result<void>& wrong :
       {(*average)->join(1).map([](std::int64_t) {}), (*average)->backward({}), (*mean)->backward(loss(mean_net))}) {
    ASSERT_FALSE(wrong);
    EXPECT_EQ(wrong.error().kind, ErrorKind::usage);
  }
  ASSERT_TRUE((*mean)->join(0));
  EXPECT_FALSE((*mean)->backward(loss(mean_net)));
  ASSERT_TRUE((*mean)->join(1));
  EXPECT_FALSE((*mean)->backward({}));
}

}  // namespace
}  // namespace yoke
