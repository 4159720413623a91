#include "train/loop/data_parallel_module.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <torch/optim/sgd.h>

#include <functional>
#include <thread>

#include "train/comm/shared_memory.h"

namespace yoke {
namespace {

// y = x w, with a parameter that nothing uses and a buffer.
struct Line : torch::nn::Module {
  explicit Line(double start) {
    w = register_parameter("w", at::full({2}, start));
    unused = register_parameter("unused", at::full({3}, start));
    seen = register_buffer("seen", at::full({1}, start).to(at::kLong));
  }
  at::Tensor w, unused, seen;
};

// Runs `body` on two ranks as threads.
void on_two_ranks(const std::function<void(Job&)>& body) {
  auto communicators = thread_group("data", 2, Seconds(30));
  std::vector<std::thread> threads;
  for (auto& communicator : communicators)
    threads.emplace_back(
        [&body, mine = std::move(communicator)]() mutable { body(*Job::from_communicator(std::move(mine))); });
  for (std::thread& thread : threads) thread.join();
}

at::Tensor loss(const Line& line, double x) { return (line.w * x).sum(); }

TEST(DataParallelModule, StartsFromRankZerosParametersAndBuffers) {
  on_two_ranks([](Job& job) {
    Line line(job.rank() + 1.0);
    ASSERT_TRUE(DataParallelModule::wrap(job, line, {}));
    EXPECT_TRUE(at::equal(line.w, at::ones({2})));
    EXPECT_TRUE(at::equal(line.seen, at::ones({1}, at::kLong)));
  });
}

TEST(DataParallelModule, AStepMayBeAbandoned) {
  on_two_ranks([](Job& job) {
    Line line(1);
    auto parallel = DataParallelModule::wrap(job, line, {});
    ASSERT_TRUE(parallel);
    torch::optim::SGD sgd(line.parameters(), 1.0);
    for (int tries = 0; tries < 2; ++tries) {
      sgd.zero_grad();
      loss(line, 7).backward();  // and no reducing backward after it
    }
    sgd.zero_grad();
    ASSERT_TRUE((*parallel)->backward(loss(line, job.rank() == 0 ? 10 : 20)));
    EXPECT_TRUE(at::equal(line.w.grad(), at::full({2}, 15.0)));
  });
}

TEST(DataParallelModule, AveragesWhatWasAccumulated) {
  on_two_ranks([](Job& job) {
    Line line(1);
    auto parallel = DataParallelModule::wrap(job, line, {});
    ASSERT_TRUE(parallel);
    torch::optim::SGD sgd(line.parameters(), 1.0);
    for (int step = 0; step < 3; ++step) {  // zero_grad() sets gradients to none
      sgd.zero_grad();
      loss(line, 2).backward();  // d/dw = 2 on both, here only
      ASSERT_TRUE((*parallel)->backward(loss(line, job.rank() == 0 ? 10 : 20)));
      EXPECT_TRUE(at::equal(line.w.grad(), at::full({2}, 2.0 + 15.0)));
      EXPECT_TRUE(at::equal(line.unused.grad(), at::zeros({3})));
    }
    sgd.step();
    EXPECT_TRUE(at::equal(line.w.detach(), at::full({2}, 1.0 - 17.0)));
  });
}

TEST(DataParallelModule, SumsWhenAsked) {
  on_two_ranks([](Job& job) {
    Line line(1);
    auto parallel = DataParallelModule::wrap(job, line, {.gradients = DataParallelOptions::Gradients::sum});
    ASSERT_TRUE(parallel);
    ASSERT_TRUE((*parallel)->backward(loss(line, job.rank() == 0 ? 10 : 20)));
    EXPECT_TRUE(at::equal(line.w.grad(), at::full({2}, 30.0)));
  });
}

TEST(DataParallelModule, DifferentModulesAreAnErrorOnEveryRank) {
  on_two_ranks([](Job& job) {
    Line line(1);
    if (job.rank() == 1) line.register_buffer("more", at::zeros({1}));
    auto parallel = DataParallelModule::wrap(job, line, {});
    ASSERT_FALSE(parallel);
    EXPECT_EQ(parallel.error().kind, ErrorKind::usage);
  });
}

// What was gathered before an update is not taken for the new values.
TEST(DataParallelModule, AnUpdateIsSeenByTheNextUse) {
  on_two_ranks([](Job& job) {
    Line line(1);
    auto parallel = DataParallelModule::wrap(job, line, {.zero = 3});
    ASSERT_TRUE(parallel);
    torch::optim::SGD sgd((*parallel)->parameters(), 1.0);
    for (int step = 0; step < 4; ++step) {
      ASSERT_TRUE((*parallel)->backward(loss(line, 1)));
      if (step % 2 == 1) {
        ASSERT_TRUE((*parallel)->gather_parameters());
      }
      EXPECT_EQ(loss(line, 1).item<double>(), 2.0 * (1 - step));
      ASSERT_TRUE((*parallel)->step(sgd));
      EXPECT_EQ(loss(line, 1).item<double>(), 2.0 * (1 - step - 1));
    }
  });
}

TEST(Job, OneFailureIsEverybodysError) {
  on_two_ranks([](Job& job) {
    Result<void> mine;
    if (job.rank() == 1) mine = fail(ErrorKind::environment, "disk full");
    auto all = job.agree("saving", mine);
    ASSERT_FALSE(all);
    EXPECT_EQ(all.error().what == "disk full", job.rank() == 1);
  });
}

}  // namespace
}  // namespace yoke
