#include "train/comm/c10d.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "os/port.h"

namespace yoke {
namespace {

using testing::HasSubstr;

// Ranks are threads here, each with its own process group over loopback, as processes would have.
void run_ranks(int size, Seconds timeout, const std::function<void(Communicator&)>& body) {
  auto port = free_tcp_port();
  ASSERT_TRUE(port);
  std::vector<std::thread> threads;
  for (int r = 0; r < size; ++r)
    threads.emplace_back([&, r] {
      World world{.rank = r, .size = size, .local_rank = r, .local_size = size, .master_port = *port};
      auto communicator = connect(world, "data", Transport::gloo, timeout);
      ASSERT_TRUE(communicator) << communicator.error().what;
      body(**communicator);
    });
  for (std::thread& thread : threads) thread.join();
}

Result<void> finish(Result<WorkPtr> work) {
  if (!work) return tl::unexpected(work.error());
  return (*work)->wait();
}

TEST(C10d, Collectives) {
  for (int n : {2, 3}) {
    run_ranks(n, Seconds(60), [n](Communicator& c) {
      double r = c.rank();
      at::Tensor x = at::full({1000}, r + 1), high = at::full({2}, r), root = at::full({3}, r);
      at::Tensor all = at::zeros({2 * n}), mine = at::full({2}, r), part = at::zeros({2}),
                 whole = at::arange(2 * n, at::kFloat) + r;
      auto sum = c.all_reduce("sum", x);
      auto max = c.all_reduce("max", high, ReduceOp::max);
      ASSERT_TRUE(finish(std::move(sum)));
      ASSERT_TRUE(finish(std::move(max)));
      ASSERT_TRUE(finish(c.broadcast("broadcast", root, n - 1)));
      ASSERT_TRUE(finish(c.all_gather("gather", all, mine)));
      ASSERT_TRUE(finish(c.reduce_scatter("scatter", part, whole)));
      ASSERT_TRUE(c.barrier("end"));
      EXPECT_TRUE(at::equal(x, at::full({1000}, n * (n + 1) / 2.0)));
      EXPECT_TRUE(at::equal(high, at::full({2}, n - 1.0)));
      EXPECT_TRUE(at::equal(root, at::full({3}, n - 1.0)));
      EXPECT_TRUE(at::equal(all, at::arange(n, at::kFloat).repeat_interleave(2)));
      EXPECT_TRUE(at::equal(part, (at::arange(2, at::kFloat) + 2 * r) * n + n * (n - 1) / 2.0));
    });
  }
}

TEST(C10d, TimeoutNamesTheAbsent) {
  std::atomic<int> finished{0};
  run_ranks(3, Seconds(3), [&](Communicator& c) {
    at::Tensor x = at::zeros({10});
    ASSERT_TRUE(finish(c.all_reduce("first", x)));
    if (c.rank() != 1) {
      auto result = finish(c.all_reduce("second", x));
      ASSERT_FALSE(result);
      EXPECT_THAT(result.error().what, HasSubstr("all_reduce 'second' (number 1 of group data)"));
      EXPECT_THAT(result.error().what, HasSubstr("absent ranks: 1"));
    }
    // Everybody stays until all have seen it: rank 0 hosts the store.
    ++finished;
    while (finished < 3) std::this_thread::yield();
  });
}

TEST(C10d, NobodyThere) {
  auto port = free_tcp_port();
  ASSERT_TRUE(port);
  World world{.rank = 1, .size = 2, .local_rank = 1, .local_size = 2, .master_port = *port};
  auto communicator = connect(world, "data", Transport::gloo, Seconds(1));
  ASSERT_FALSE(communicator);
  EXPECT_EQ(communicator.error().kind, ErrorKind::timeout);
  EXPECT_THAT(communicator.error().what, HasSubstr("rank 1 of 2 could not meet the others at 127.0.0.1:"));
}

}  // namespace
}  // namespace yoke
