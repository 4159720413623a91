#include "train/parallel/data_parallel.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <thread>

#include "train/comm/threads.h"

namespace yoke {
namespace {

TEST(Buckets, AreCutFromTheLastParameter) {
  std::vector<FlatEntry> entries;
  std::int64_t offset = 0;
  for (std::int64_t numel : {1000, 10, 500, 500, 200}) {
    entries.push_back({"p", {}, offset, numel});
    offset += numel;
  }
  BucketPlan plan = plan_buckets(entries, 4, {.bucket_bytes = 4000, .first_bucket_bytes = 800});
  ASSERT_EQ(plan.buckets.size(), 3u);
  EXPECT_EQ(plan.buckets[0].first, 2010);  // the last tensor alone: the small first bucket
  EXPECT_EQ(plan.buckets[0].numel, 200);
  EXPECT_EQ(plan.buckets[1].first, 1010);
  EXPECT_EQ(plan.buckets[1].numel, 1000);
  EXPECT_EQ(plan.buckets[2].numel, 1010);
  EXPECT_EQ(plan.bucket_of, (std::vector<int>{2, 2, 1, 1, 0}));
}

// Whatever the sizes: buckets follow one another without gaps and hold every entry once.
TEST(Buckets, CoverEverything) {
  std::vector<FlatEntry> entries;
  std::int64_t offset = 0;
  for (int i = 0; i < 200; ++i) {
    std::int64_t numel = 1 + (i * 7919) % 977;
    entries.push_back({"p", {}, offset, numel});
    offset += numel;
  }
  for (double bytes : {1.0, 100.0, 5000.0, 1e9}) {
    BucketPlan plan = plan_buckets(entries, 4, {bytes, bytes / 2});
    std::int64_t end = offset;
    int count = 0;
    for (const Bucket& bucket : plan.buckets) {
      EXPECT_EQ(bucket.first + bucket.numel, end);
      end = bucket.first;
      count += bucket.entries;
    }
    EXPECT_EQ(end, 0);
    EXPECT_EQ(count, 200);
  }
}

// A little network in plain autograd: tanh(x a) b, and a parameter that takes no part.
struct Network {
  at::Tensor a, b, unused;
  std::vector<std::pair<std::string, at::Tensor>> named() const { return {{"a", a}, {"b", b}, {"unused", unused}}; }
  at::Tensor loss(const at::Tensor& x) const { return at::tanh(x.mm(a)).mm(b).square().sum(); }
};

Network network(at::ScalarType type) {
  auto values = [&](std::int64_t rows, std::int64_t columns) {
    return (at::arange(rows * columns, at::kDouble).view({rows, columns}) * 0.37).sin().to(type).requires_grad_(true);
  };
  return {values(6, 5), values(5, 3), values(2, 2)};
}

TEST(DataParallel, SumsTheGradientsOfAnyModule) {
  constexpr int ranks = 3;
  at::Tensor x = (at::arange(ranks * 4 * 6, at::kDouble).view({ranks * 4, 6}) * 0.11).cos();
  Network whole = network(at::kDouble);
  whole.loss(x).backward();
  for (bool zeroed_by_optimizer : {false, true}) {
    auto communicators = thread_group("data", ranks, Seconds(60));
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks; ++r)
      threads.emplace_back([&, r] {
        Network own = network(at::kDouble);
        if (r != 0) {
          at::NoGradGuard no_grad;
          own.a.fill_(99);  // replaced by rank 0's
        }
        auto flat = FlatParameters::make(own.named());
        ASSERT_TRUE(flat);
        DataParallel parallel(*flat, *communicators[static_cast<std::size_t>(r)],
                              {.bucket_bytes = 100, .first_bucket_bytes = 40});
        ASSERT_GT(parallel.plan().buckets.size(), 1u);
        ASSERT_TRUE(parallel.broadcast_parameters());
        for (int step = 0; step < 2; ++step) {
          flat->zero_gradients();
          if (zeroed_by_optimizer)
            for (auto& [name, p] : own.named()) const_cast<at::Tensor&>(p).mutable_grad().reset();
          at::Tensor mine = x.narrow(0, r * 4, 4);
          own.loss(mine.narrow(0, 0, 2)).backward();  // accumulated, not reduced
          parallel.synchronize_next_backward();
          own.loss(mine.narrow(0, 2, 2)).backward();
          ASSERT_TRUE(parallel.finish());
          EXPECT_TRUE(at::allclose(own.a.grad(), whole.a.grad(), 1e-12, 1e-12));
          EXPECT_TRUE(at::allclose(own.b.grad(), whole.b.grad(), 1e-12, 1e-12));
          EXPECT_EQ(own.unused.grad().abs().max().item<double>(), 0);
        }
      });
    for (std::thread& thread : threads) thread.join();
  }
}

TEST(FlatParameters, BadModules) {
  at::Tensor f = at::zeros({2}).requires_grad_(true), d = at::zeros({2}, at::kDouble).requires_grad_(true),
             frozen = at::zeros({2});
  auto mixed = FlatParameters::make({{"first", f}, {"second", d}});
  ASSERT_FALSE(mixed);
  EXPECT_NE(mixed.error().what.find("second"), std::string::npos);
  EXPECT_FALSE(FlatParameters::make({{"frozen", frozen}}));
  auto tied = FlatParameters::make({{"in", f}, {"frozen", frozen}, {"out", f}});
  ASSERT_TRUE(tied);
  EXPECT_EQ(tied->entries().size(), 1u);
}

}  // namespace
}  // namespace yoke
