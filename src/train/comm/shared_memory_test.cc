#include "train/comm/shared_memory.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <thread>

#include "train/comm/test_collectives.h"
#include "train/comm/test_processes.h"

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

TEST(SharedMemory, EveryPathBetweenProcesses) {
  for (int n : {2, 3, 4}) {
    auto codes = run_processes(n, Seconds(60), [](Communicator& c) {
      at::set_num_threads(1);
      for (std::int64_t part : part_sizes)
        for (at::ScalarType type : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kLong}) {
          auto plain = [&](std::int64_t numel) { return at::empty({numel}, type); };
          auto shared = [&](std::int64_t numel) { return c.shared_empty(numel, at::dtype(type)); };
          if (!collectives_are_right(c, part, type, plain)) return 1;
          if (!collectives_are_right(c, part, type, shared)) return 2;
        }
      return 0;
    });
    EXPECT_EQ(codes, std::vector<int>(static_cast<std::size_t>(n), 0));
  }
}

TEST(SharedMemory, EveryPathBetweenThreads) {
  for (int n : {1, 2, 5})
    run_ranks(n, Seconds(60), [](Communicator& c) {
      for (std::int64_t part : part_sizes)
        for (at::ScalarType type : {at::kFloat, at::kBFloat16})
          EXPECT_TRUE(
              collectives_are_right(c, part, type, [&](std::int64_t numel) { return at::empty({numel}, type); }));
    });
}

TEST(SharedMemory, SumsOf16BitTypesAreRoundedOnce) {
  auto codes = run_processes(3, Seconds(60), [](Communicator& c) {
    // 256 + 1 + 1 is 258; rounded after each addition in bf16 it would stay 256.
    for (std::int64_t numel : {4, 100'000}) {
      at::Tensor x = at::full({numel}, c.rank() == 0 ? 256.0 : 1.0, at::kBFloat16);
      if (!finish(c.all_reduce("x", x)) || !at::equal(x, at::full({numel}, 258.0, at::kBFloat16))) return 1;
    }
    return 0;
  });
  EXPECT_EQ(codes, std::vector<int>(3, 0));
}

TEST(SharedMemory, Subgroups) {
  auto body = [](Communicator& c) {
    // Rows and columns of a 2 x 2 mesh, at the same time.
    int r = c.rank();
    auto row = c.subgroup("row", {r / 2 * 2, r / 2 * 2 + 1});
    auto column = c.subgroup("column", {r % 2, r % 2 + 2});
    if (!row || !column || (*row)->size() != 2 || (*row)->rank() != r % 2 || (*column)->rank() != r / 2) return 1;
    for (std::int64_t part : part_sizes) {
      auto plain = [](std::int64_t numel) { return at::empty({numel}); };
      if (!collectives_are_right(**row, part, at::kFloat, plain)) return 2;
      if (!collectives_are_right(**column, part, at::kFloat, plain)) return 3;
    }
    at::Tensor x = at::full({1}, r);
    if (!finish((*row)->all_reduce("x", x)) || x.item<float>() != (r / 2 == 0 ? 1 : 5)) return 4;
    if (!c.barrier("end")) return 5;
    return 0;
  };
  EXPECT_EQ(run_processes(4, Seconds(60), body), std::vector<int>(4, 0));
  run_ranks(4, Seconds(60), [&](Communicator& c) { EXPECT_EQ(body(c), 0); });
}

TEST(SharedMemory, AKilledRankIsNamed) {
  auto pids = start_processes(3, Seconds(600), [](Communicator& c) {
    at::Tensor x = at::ones({300'000});
    if (!finish(c.all_reduce("first", x))) return 1;
    if (c.rank() == 1) raise(SIGKILL);
    auto result = finish(c.all_reduce("second", x));
    bool named = !result && result.error().kind == ErrorKind::failed &&
                 result.error().what == "all_reduce 'second' (number 1 of group data) failed: rank 1 ended before it";
    return named ? 0 : 2;
  });
  // Nobody reaps the dead one before the others have ended.
  EXPECT_EQ(wait_for(pids[0]), 0);
  EXPECT_EQ(wait_for(pids[2]), 0);
  EXPECT_EQ(wait_for(pids[1]), -SIGKILL);
}

TEST(SharedMemory, AStoppedRankIsNamed) {
  auto pids = start_processes(3, Seconds(1), [](Communicator& c) {
    at::Tensor x = at::ones({300'000});
    if (!finish(c.all_reduce("first", x))) return 1;
    if (c.rank() == 2) raise(SIGSTOP);
    auto result = finish(c.all_reduce("second", x));
    if (result || !result.error().what.ends_with("absent ranks: 2 (stopped by a signal)")) return 2;
    return result.error().hint.find("kill -CONT") != std::string::npos ? 0 : 3;
  });
  EXPECT_EQ(wait_for(pids[0]), 0);
  EXPECT_EQ(wait_for(pids[1]), 0);
  kill(pids[2], SIGKILL);
  EXPECT_EQ(wait_for(pids[2]), -SIGKILL);
}

// Whatever the moment: also in the middle of a tensor that goes through the staging area.
TEST(SharedMemory, ARankThatStopsInTheMiddleIsNamed) {
  for (int event : {SIGSTOP, SIGKILL}) {
    auto pids = start_processes(3, Seconds(2), [event](Communicator& c) {
      at::set_num_threads(1);
      if (c.rank() == 1)
        std::thread([event] {
          std::this_thread::sleep_for(std::chrono::milliseconds(30));
          kill(getpid(), event);
        }).detach();
      at::Tensor x = at::ones({3'000'000});
      for (;;) {
        auto result = finish(c.all_reduce("x", x));
        if (result) continue;
        std::string end = event == SIGSTOP ? "absent ranks: 1 (stopped by a signal)" : "failed: rank 1 ended before it";
        return result.error().what.ends_with(end) ? 0 : 1;
      }
    });
    EXPECT_EQ(wait_for(pids[0]), 0);
    EXPECT_EQ(wait_for(pids[2]), 0);
    kill(pids[1], SIGKILL);
    EXPECT_EQ(wait_for(pids[1]), -SIGKILL);
  }
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
