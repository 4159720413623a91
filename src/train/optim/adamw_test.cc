#include "train/optim/adamw.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "os/file.h"
#include "train/comm/shared_memory.h"
#include "train/parallel/data_axis.h"

namespace yoke {
namespace {

// AdamW as the paper's Algorithm 2 writes it, in fp64, one number at a time.
struct Reference {
  std::vector<double> w, m, v;
  double beta1, beta2, eps, decay;
  int t = 0;

  void step(const std::vector<double>& g, double lr) {
    ++t;
    for (std::size_t i = 0; i < w.size(); ++i) {
      w[i] -= lr * decay * w[i];
      m[i] = beta1 * m[i] + (1 - beta1) * g[i];
      v[i] = beta2 * v[i] + (1 - beta2) * g[i] * g[i];
      w[i] -= lr * (m[i] / (1 - std::pow(beta1, t))) / (std::sqrt(v[i] / (1 - std::pow(beta2, t))) + eps);
    }
  }
};

std::vector<double> numbers(const at::Tensor& t) {
  at::Tensor wide = t.reshape({-1}).to(at::kDouble).contiguous();
  return {wide.const_data_ptr<double>(), wide.const_data_ptr<double>() + wide.numel()};
}

TEST(AdamW, EqualsThePaper) {
  for (at::ScalarType type : {at::kFloat, at::kDouble, at::kBFloat16}) {
    for (Decay decay : {Decay::all, Decay::matrices}) {
      at::Tensor matrix = at::randn({7, 5}).to(type).requires_grad_(true),
                 vector = at::randn({9}).to(type).requires_grad_(true);
      auto alone = thread_group("data", 1, Seconds(1));
      auto axis = DataAxis::make(*alone[0], 0, 0);
      ASSERT_TRUE(axis);
      auto made = FlatParameters::make({{"matrix", matrix}, {"vector", vector}}, (*axis)->groups(), {});
      ASSERT_TRUE(made);
      FlatParameters& flat = **made;
      ASSERT_EQ(flat.unit_count(), 1);
      OptimizerSpec spec{.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.3, .decay = decay};
      auto made_optimizer = AdamW::make(flat, spec);
      ASSERT_TRUE(made_optimizer);
      AdamW& optimizer = **made_optimizer;
      std::vector<Reference> references;
      for (const at::Tensor& p : {matrix, vector}) {
        std::size_t n = static_cast<std::size_t>(p.numel());
        double wd = decay == Decay::all || p.dim() > 1 ? spec.weight_decay : 0;
        references.push_back({numbers(p.detach()), std::vector<double>(n), std::vector<double>(n), spec.beta1,
                              spec.beta2, spec.eps, wd});
      }
      for (int s = 0; s < 5; ++s) {
        double scale = s % 2 == 0 ? 1.0 : 0.25;
        flat.gradient_shard(0).normal_();
        for (std::size_t i = 0; i < 2; ++i)
          references[i].step(numbers(FlatParameters::view(flat.gradients(0), flat.entries()[i]) * scale), 1e-2);
        ASSERT_TRUE(optimizer.step(1e-2, scale));
      }
      double tolerance =
          type == at::kDouble ? 1e-7 : 2e-6;  // libtorch's bias corrections pass through fp32 step counts
      for (std::size_t i = 0; i < 2; ++i) {
        std::vector<double> ours =
            numbers(FlatParameters::view(*optimizer.read(AdamW::Part::weights, 0), flat.entries()[i]));
        for (std::size_t j = 0; j < ours.size(); ++j) EXPECT_NEAR(ours[j], references[i].w[j], tolerance);
      }
      EXPECT_EQ(optimizer.steps(), 5);
      // The parameters are the master weights, rounded.
      EXPECT_TRUE(at::equal(flat.values(0), optimizer.read(AdamW::Part::weights, 0)->to(type)));
      EXPECT_TRUE(at::equal(matrix.detach().reshape({-1}), flat.values(0).narrow(0, 0, 35)));
    }
  }
}

// Elsewhere it is the same arithmetic: pages that begin and end anywhere in units and runs, values in a file too.
TEST(AdamW, OffloadedEqualsInMemory) {
  TemporaryFolder folder;
  for (at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    for (int zero : {0, 3}) {
      SCOPED_TRACE(fmt::format("{} zero {}", c10::toString(type), zero));
      auto alone = thread_group("data", 1, Seconds(1));
      auto axis = DataAxis::make(*alone[0], 0, 0);
      ASSERT_TRUE(axis);
      struct Side {
        std::unique_ptr<FlatParameters> flat;
        std::unique_ptr<AdamW> optimizer;
      };
      std::vector<at::Tensor> values{at::randn({300, 1000}), at::randn({1000}), at::randn({700, 500}),
                                     at::randn({7}),         at::randn({100}),  at::randn({33, 33})};
      OptimizerSpec spec{.lr = 1e-2, .weight_decay = 0.3, .decay = Decay::matrices};
      auto make = [&](Offload where) {
        std::vector<std::pair<std::string, at::Tensor>> named;
        for (std::size_t i = 0; i < values.size(); ++i)
          // A copy: parameters lose their own memory.
          named.emplace_back(fmt::format("layer.{}.weight", i), values[i].to(type, false, true).requires_grad_(i != 3));
        FlatOptions options{.zero = zero, .bucket_bytes = 1e6, .least_unit_bytes = 4};
        if (zero == 3) options.values = where, options.folder = folder.path();
        auto flat = FlatParameters::make(named, (*axis)->groups(), options);
        EXPECT_TRUE(flat);
        auto optimizer = AdamW::make(**flat, spec, where, folder.path());
        EXPECT_TRUE(optimizer);
        return Side{*std::move(flat), *std::move(optimizer)};
      };
      Side memory = make(Offload::none), file = make(Offload::file);
      ASSERT_GE(memory.flat->unit_count(), 3);
      for (int s = 0; s < 3; ++s) {
        for (int u = 0; u < memory.flat->unit_count(); ++u) {
          if (!memory.flat->gradient_shard(u).defined()) continue;
          memory.flat->gradient_shard(u).normal_();
          file.flat->gradient_shard(u).copy_(memory.flat->gradient_shard(u));
        }
        ASSERT_TRUE(memory.optimizer->step(1e-2, 0.5));
        ASSERT_TRUE(file.optimizer->step(1e-2, 0.5));
      }
      auto compare = [&] {
        for (int u = 0; u < memory.flat->unit_count(); ++u) {
          for (AdamW::Part part : {AdamW::Part::weights, AdamW::Part::exp_avg, AdamW::Part::exp_avg_sq}) {
            if (part != AdamW::Part::weights && !memory.flat->gradient_shard(u).defined()) continue;
            auto expected = memory.optimizer->read(part, u), got = file.optimizer->read(part, u);
            ASSERT_TRUE(expected && got);
            // The last elements of a page pass through other instructions, which may round otherwise.
            EXPECT_TRUE(at::allclose(*got, *expected, 1e-6, 1e-9)) << u;
          }
          auto shard = file.flat->open_value_shard(u);
          ASSERT_TRUE(shard);
          EXPECT_TRUE(at::allclose(*shard, memory.flat->value_shard(u), type == at::kFloat ? 1e-6 : 1e-2, 1e-9)) << u;
          file.flat->close_value_shard(u, *shard, false);
        }
      };
      compare();
      // Written and published: what loading a checkpoint does.
      for (int u = 0; u < memory.flat->unit_count(); ++u) {
        at::Tensor weights = at::randn({memory.flat->map().shard(u)});
        for (Side* side : {&memory, &file}) ASSERT_TRUE(side->optimizer->write(AdamW::Part::weights, u, weights));
      }
      for (Side* side : {&memory, &file}) ASSERT_TRUE(side->optimizer->publish());
      compare();
    }
  }
  EXPECT_TRUE(list_folder(folder.path())->empty());
}

TEST(AdamW, GradientNormAndClip) {
  for (at::ScalarType type : {at::kDouble, at::kFloat}) {
    at::Tensor p = at::zeros({100003}, type).requires_grad_(true);
    auto alone = thread_group("data", 1, Seconds(1));
    auto axis = DataAxis::make(*alone[0], 0, 0);
    ASSERT_TRUE(axis);
    auto flat = FlatParameters::make({{"p", p}}, (*axis)->groups(), {});
    ASSERT_TRUE(flat);
    at::Tensor g = at::randn({100003}, at::kDouble).to(type);
    FlatParameters::view((*flat)->gradients(0), (*flat)->entries()[0]).copy_(g);
    double exact = g.to(at::kDouble).norm().item<double>();
    EXPECT_NEAR(std::sqrt(sum_of_squared_gradients(**flat)), exact, (type == at::kDouble ? 1e-10 : 1e-6) * exact);
  }
  EXPECT_EQ(clip_factor(0.5, 1), 1);
  EXPECT_EQ(clip_factor(4, 0), 1);
  EXPECT_DOUBLE_EQ(clip_factor(4, 1), 1 / (4 + 1e-6));
}

TEST(AdamW, LearningRate) {
  OptimizerSpec optimizer{.lr = 1.0};
  LrScheduleSpec schedule{.warmup = 4, .decay = LrDecay::cosine, .min_lr = 0.1};
  EXPECT_DOUBLE_EQ(learning_rate(optimizer, schedule, 25, 0), 0.25);
  EXPECT_DOUBLE_EQ(learning_rate(optimizer, schedule, 25, 3), 1);
  EXPECT_DOUBLE_EQ(learning_rate(optimizer, schedule, 25, 4), 1);
  EXPECT_NEAR(learning_rate(optimizer, schedule, 25, 14), 0.55, 1e-12);  // halfway
  EXPECT_NEAR(learning_rate(optimizer, schedule, 25, 24), 0.1, 1e-12);
  schedule.decay = LrDecay::linear;
  EXPECT_NEAR(learning_rate(optimizer, schedule, 25, 19), 0.1 + 0.9 / 4, 1e-12);
  schedule.decay = LrDecay::none;
  EXPECT_EQ(learning_rate(optimizer, schedule, 25, 24), 1);
}

}  // namespace
}  // namespace yoke
