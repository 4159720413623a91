#include "train/parallel/data_parallel.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "train/comm/shared_memory.h"
#include "train/parallel/data_axis.h"
#include "train/parallel/gather_on_use.h"

namespace yoke {
namespace {

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

// The whole tensor of an entry.
at::Tensor whole(const FlatParameters& flat, std::size_t entry, bool gradient) {
  const FlatEntry& e = flat.entries()[entry];
  int unit = e.place.unit;
  auto gathered = flat.gather("whole", unit, gradient ? flat.gradient_shard(unit) : flat.value_shard(unit));
  EXPECT_TRUE(gathered);
  return gathered->at(e.name).clone();
}

struct Case {
  int ranks, zero;
  std::int64_t shard_group = 0;
};

class EveryStage : public testing::TestWithParam<Case> {};

TEST_P(EveryStage, SumsTheGradientsOfAnyModule) {
  auto [ranks, zero, shard_group] = GetParam();
  at::Tensor x = (at::arange(ranks * 4 * 6, at::kDouble).view({ranks * 4, 6}) * 0.11).cos();
  Network one = network(at::kDouble);
  one.loss(x).backward();
  auto communicators = thread_group("data", ranks, Seconds(60));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r, zero = zero, shard_group = shard_group] {
      Network own = network(at::kDouble);
      at::Tensor a = own.a.detach().clone();
      auto axis = DataAxis::make(*communicators[static_cast<std::size_t>(r)], zero, shard_group);
      ASSERT_TRUE(axis);
      auto made =
          FlatParameters::make(own.named(), (*axis)->groups(),
                               {.zero = zero, .bucket_bytes = 100, .first_bucket_bytes = 40, .least_unit_bytes = 0});
      ASSERT_TRUE(made);
      FlatParameters& flat = **made;
      ASSERT_GT(flat.unit_count(), 1);
      EXPECT_TRUE(at::equal(whole(flat, 0, false), a));
      DataParallel parallel(flat);
      std::optional<GatherOnUse> gather;
      at::CallbackHandle watch = 0;
      if (zero == 3) {
        gather.emplace(flat);
        watch = GatherOnUse::watch_operations();
        EXPECT_EQ(own.a.const_data_ptr(), nullptr);
      }
      for (int step = 0; step < 3; ++step) {
        flat.zero_gradients();
        if (step == 1 && zero == 0)  // as an optimizer's zero_grad() does
          for (auto& [name, p] : own.named()) const_cast<at::Tensor&>(p).mutable_grad().reset();
        for (int half : {0, 1}) {
          if (gather) gather->begin("train");
          at::Tensor loss = own.loss(x.narrow(0, r * 4 + 2 * half, 2));
          parallel.begin_backward(half == 1);
          loss.backward();
          ASSERT_TRUE(parallel.finish_backward());
          if (gather) {
            ASSERT_TRUE(gather->end());
          }
        }
        EXPECT_TRUE(at::allclose(whole(flat, 0, true), one.a.grad(), 1e-12, 1e-12));
        EXPECT_TRUE(at::allclose(whole(flat, 1, true), one.b.grad(), 1e-12, 1e-12));
        EXPECT_EQ(whole(flat, 2, true).abs().max().item<double>(), 0);
        EXPECT_EQ(own.a.const_data_ptr() == nullptr, zero == 3);
      }
      if (gather) GatherOnUse::stop_watching(watch);
    });
  for (std::thread& thread : threads) thread.join();
}

INSTANTIATE_TEST_SUITE_P(All, EveryStage,
                         testing::Values(Case{1, 0}, Case{3, 0}, Case{1, 1}, Case{3, 1}, Case{3, 2}, Case{3, 3},
                                         Case{1, 3}, Case{4, 1, 2}, Case{4, 2, 2}, Case{4, 3, 2}, Case{2, 3, 1}),
                         [](const auto& each) {
                           return fmt::format("ranks{}zero{}group{}", each.param.ranks, each.param.zero,
                                              each.param.shard_group);
                         });

TEST(FlatParameters, BadModules) {
  auto alone = thread_group("data", 1, Seconds(1));
  auto axis = DataAxis::make(*alone[0], 0, 0);
  ASSERT_TRUE(axis);
  auto make = [&](const std::vector<std::pair<std::string, at::Tensor>>& named) {
    return FlatParameters::make(named, (*axis)->groups(), {});
  };
  at::Tensor f = at::zeros({2}).requires_grad_(true), d = at::zeros({2}, at::kDouble).requires_grad_(true),
             frozen = at::zeros({2});
  auto mixed = make({{"first", f}, {"second", d}});
  ASSERT_FALSE(mixed);
  EXPECT_NE(mixed.error().what.find("second"), std::string::npos);
  EXPECT_FALSE(make({{"frozen", frozen}}));
  auto tied = make({{"in", f}, {"frozen", frozen}, {"out", f}});
  ASSERT_TRUE(tied);
  ASSERT_EQ((*tied)->entries().size(), 2u);  // "in", and the frozen one, which has no gradients
  EXPECT_FALSE((*tied)->gradient_shard((*tied)->entries()[1].place.unit).defined());
}

TEST(DataAxis, ShardGroupsMustDivideTheRanks) {
  auto three = thread_group("data", 3, Seconds(1));
  auto axis = DataAxis::make(*three[0], 1, 2);
  ASSERT_FALSE(axis);
  EXPECT_EQ(axis.error().kind, ErrorKind::usage);
}

}  // namespace
}  // namespace yoke
