#include "train/comm/threads.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

namespace yoke {
namespace {

using testing::HasSubstr;

// Runs body on a thread for each rank; a communicator is dropped when its body returns.
void run_ranks(int size, Seconds timeout, const std::function<void(Communicator&)>& body) {
  auto communicators = thread_group("data", size, timeout);
  std::vector<std::thread> threads;
  for (auto& communicator : communicators)
    threads.emplace_back([&body, own = std::move(communicator)]() mutable {
      body(*own);
      own.reset();
    });
  for (std::thread& thread : threads) thread.join();
}

Result<void> finish(Result<WorkPtr> work) {
  if (!work) return tl::unexpected(work.error());
  return (*work)->wait();
}

class Threads : public testing::TestWithParam<int> {};

TEST_P(Threads, Collectives) {
  int n = GetParam();
  run_ranks(n, Seconds(60), [n](Communicator& c) {
    double r = c.rank();
    at::Tensor x = at::full({5}, r + 1), high = at::full({2}, r), low = at::full({2}, r), from_last = at::full({3}, r);
    auto sum = c.all_reduce("sum", x);
    auto max = c.all_reduce("max", high, ReduceOp::max);
    auto min = c.all_reduce("min", low, ReduceOp::min);
    auto broadcast = c.broadcast("broadcast", from_last, n - 1);
    at::Tensor mine = at::full({2}, r), all = at::zeros({2 * n}), part = at::zeros({2}),
               whole = at::arange(2 * n, at::kFloat) + r;
    auto gathered = c.all_gather("gather", all, mine);
    auto scattered = c.reduce_scatter("scatter", part, whole);
    // Waited for in another order than started.
    for (auto* work : {&scattered, &gathered, &broadcast, &min, &max, &sum}) ASSERT_TRUE(finish(std::move(*work)));
    ASSERT_TRUE(c.barrier("end"));
    EXPECT_TRUE(at::equal(x, at::full({5}, n * (n + 1) / 2.0)));
    EXPECT_TRUE(at::equal(high, at::full({2}, n - 1.0)));
    EXPECT_TRUE(at::equal(low, at::zeros({2})));
    EXPECT_TRUE(at::equal(from_last, at::full({3}, n - 1.0)));
    EXPECT_TRUE(at::equal(all, at::arange(n, at::kFloat).repeat_interleave(2)));
    EXPECT_TRUE(at::equal(part, (at::arange(2, at::kFloat) + 2 * r) * n + n * (n - 1) / 2.0));
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, Threads, testing::Values(1, 2, 3, 8));

TEST(Threads, SentBytesAreTheTextbookVolume) {
  run_ranks(4, Seconds(60), [](Communicator& c) {
    at::Tensor x = at::zeros({100}), part = at::zeros({25});
    ASSERT_TRUE(finish(c.all_reduce("a", x)));
    EXPECT_EQ(c.sent_bytes(), 2 * 400 * 3 / 4);
    ASSERT_TRUE(finish(c.reduce_scatter("b", part, x)));
    ASSERT_TRUE(finish(c.all_gather("c", x, part)));
    EXPECT_EQ(c.sent_bytes(), 4 * 400 * 3 / 4);
  });
}

TEST(Threads, TimeoutNamesTheAbsent) {
  auto communicators = thread_group("data", 3, Seconds(0.2));
  std::vector<std::thread> threads;
  for (int r : {0, 2})
    threads.emplace_back([&, r] {
      at::Tensor x = at::zeros({1});
      auto result = finish(communicators[static_cast<std::size_t>(r)]->all_reduce("gradients, bucket 3", x));
      ASSERT_FALSE(result);
      EXPECT_EQ(result.error().kind, ErrorKind::timeout);
      EXPECT_THAT(result.error().what, HasSubstr("all_reduce 'gradients, bucket 3' (number 0 of group data)"));
      EXPECT_THAT(result.error().what, HasSubstr("absent ranks: 1"));
    });
  for (std::thread& thread : threads) thread.join();
}

TEST(Threads, ARankThatEndsIsNotWaitedFor) {
  run_ranks(3, Seconds(600), [](Communicator& c) {
    if (c.rank() == 1) return;
    at::Tensor x = at::zeros({1});
    auto result = finish(c.all_reduce("x", x));
    ASSERT_FALSE(result);
    EXPECT_EQ(result.error().kind, ErrorKind::failed);
    EXPECT_THAT(result.error().what, HasSubstr("rank 1 ended before it"));
  });
}

TEST(Threads, DifferentCollectivesAreAnError) {
  run_ranks(2, Seconds(600), [](Communicator& c) {
    at::Tensor x = at::zeros({c.rank() == 0 ? 4 : 5});
    auto result = finish(c.all_reduce("x", x));
    ASSERT_FALSE(result);
    EXPECT_THAT(result.error().what, HasSubstr("ranks disagree"));
  });
}

}  // namespace
}  // namespace yoke
