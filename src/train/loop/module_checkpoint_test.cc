#include "train/loop/module_checkpoint.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <gmock/gmock.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules.h>
#include <torch/optim.h>

#include <functional>
#include <map>
#include <thread>

#include "os/file.h"
#include "os/testing.h"
#include "train/checkpoint/checkpoint_reader.h"
#include "train/comm/shared_memory.h"
#include "train/optim/loss_scaler.h"

namespace yoke {
namespace {

namespace nn = torch::nn;
namespace optim = torch::optim;

constexpr std::int64_t columns = 6, classes = 3, rows = 12;

// A tied parameter, a frozen one, and a buffer that training changes alike on all ranks.
struct Net : nn::Module {
  Net() {
    first = register_module("first", nn::Linear(columns, 7));
    back = register_parameter("back", first->weight);
    middle = register_module("middle", nn::Linear(nn::LinearOptions(columns, columns).bias(false)));
    middle->weight.set_requires_grad(false);
    last = register_module("last", nn::Linear(columns, classes));
    calls = register_buffer("calls", at::zeros({1}, at::kLong));
    to(at::kDouble);
    at::NoGradGuard no_grad;
    for (auto& item : named_parameters())
      item.value().copy_(at::randn(item.value().sizes(),
                                   at::make_generator<at::CPUGeneratorImpl>(std::hash<std::string>()(item.key())),
                                   at::kDouble) *
                         0.4);
  }
  at::Tensor forward(const at::Tensor& x) {
    calls.add_(1);
    return last->forward(middle->forward(at::tanh(first->forward(x)).matmul(back)));
  }
  nn::Linear first{nullptr}, middle{nullptr}, last{nullptr};
  at::Tensor back, calls;
};

using MakeOptimizer = std::function<std::unique_ptr<optim::Optimizer>(const std::vector<at::Tensor>&)>;

const std::map<std::string, MakeOptimizer> optimizers{
    {"Sgd", [](const auto& p) { return std::make_unique<optim::SGD>(p, optim::SGDOptions(0.1).momentum(0.9)); }},
    {"Adam", [](const auto& p) { return std::make_unique<optim::Adam>(p, optim::AdamOptions(0.01).amsgrad(true)); }},
    {"AdamW",
     [](const auto& p) { return std::make_unique<optim::AdamW>(p, optim::AdamWOptions(0.01).weight_decay(0.1)); }},
    {"RmsProp",
     [](const auto& p) {
       return std::make_unique<optim::RMSprop>(p, optim::RMSpropOptions(0.01).momentum(0.5).centered(true));
     }},
    {"Adagrad", [](const auto& p) { return std::make_unique<optim::Adagrad>(p, optim::AdagradOptions(0.05)); }}};

struct Layout {
  int ranks = 1, zero = 0;
  std::int64_t shard_group = 0;
  bool wrapped = true;  // else the bare module, on one rank
};
const std::vector<Layout> layouts{{1, 0, 0, false}, {2, 0}, {3, 1}, {2, 2}, {3, 3}, {4, 3, 2}, {1, 3}};

std::string text(const Layout& l) {
  return fmt::format("ranks {} zero {} shard group {} wrapped {}", l.ranks, l.zero, l.shard_group, l.wrapped);
}

// Runs `body` on each rank of a group of threads.
void on_ranks(int ranks, const std::function<void(Job&)>& body) {
  auto communicators = thread_group("data", ranks, Seconds(30));
  std::vector<std::thread> threads;
  for (auto& communicator : communicators)
    threads.emplace_back(
        [&body, mine = std::move(communicator)]() mutable { body(*Job::from_communicator(std::move(mine))); });
  for (std::thread& thread : threads) thread.join();
}

at::Tensor loss(Net& net, std::int64_t step, int rank, int ranks) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(step + 1));
  at::Tensor x = at::randn({rows, columns}, generator, at::kDouble),
             y = at::randint(classes, {rows}, generator, at::kLong);
  std::int64_t share = rows / ranks;
  return nn::functional::cross_entropy(net.forward(x.narrow(0, rank * share, share)), y.narrow(0, rank * share, share));
}

using Tensors = std::map<std::string, at::Tensor>;

Tensors state(const Net& net) {
  Tensors copies;
  for (const auto& item : net.named_parameters()) copies[item.key()] = item.value().detach().clone();
  for (const auto& item : net.named_buffers()) copies[item.key()] = item.value().clone();
  return copies;
}

// From the newest checkpoint below `root`, if there is one, up to `steps`; then saves. The weights are rank 0's.
Tensors train(const Layout& l, const MakeOptimizer& make_optimizer, const std::string& root, std::int64_t steps) {
  Tensors weights;
  on_ranks(l.ranks, [&](Job& job) {
    Net net;
    std::unique_ptr<DataParallelModule> parallel;
    std::unique_ptr<optim::Optimizer> optimizer;
    Result<ResumedModule> resumed;
    if (l.wrapped) {
      auto wrapped = DataParallelModule::wrap(
          job, net, {.bucket_bytes = 200, .zero = l.zero, .shard_group = l.shard_group, .least_unit_bytes = 100});
      ASSERT_TRUE(wrapped) << wrapped.error().what;
      parallel = *std::move(wrapped);
      optimizer = make_optimizer(parallel->parameters());
      resumed = load_module(job, root, *parallel, optimizer.get());
    } else {
      optimizer = make_optimizer({net.first->weight, net.first->bias, net.last->weight, net.last->bias});
      resumed = load_module(job, root, net, optimizer.get());
    }
    ASSERT_TRUE(resumed) << resumed.error().what;
    for (std::int64_t s = std::max<std::int64_t>(resumed->step, 0); s < steps; ++s) {
      at::Tensor mine = loss(net, s, job.rank(), l.ranks);
      if (l.wrapped) {
        ASSERT_TRUE(parallel->backward(mine));
        ASSERT_TRUE(parallel->step(*optimizer));
      } else {
        optimizer->zero_grad();
        mine.backward();
        optimizer->step();
      }
    }
    Result<void> saved = l.wrapped ? save_module(job, root, steps, *parallel, optimizer.get())
                                   : save_module(job, root, steps, net, optimizer.get());
    ASSERT_TRUE(saved) << saved.error().what;
    if (l.wrapped) {
      ASSERT_TRUE(parallel->gather_parameters());
    }
    if (job.rank() == 0) weights = state(net);
    if (l.wrapped) parallel->release_parameters();
  });
  return weights;
}

class ModuleCheckpoint : public testing::TestWithParam<std::string> {};

// Two steps on one layout and two on another end where four of plain libtorch do.
TEST_P(ModuleCheckpoint, AnyLayoutGoesOnFromAnyOther) {
  const MakeOptimizer& make = optimizers.at(GetParam());
  TestFolder folder;
  Net plain;
  auto optimizer = make({plain.first->weight, plain.first->bias, plain.last->weight, plain.last->bias});
  for (std::int64_t s = 0; s < 4; ++s) {
    optimizer->zero_grad();
    loss(plain, s, 0, 1).backward();
    optimizer->step();
  }
  const Tensors wanted = state(plain);
  for (std::size_t from = 0; from < layouts.size(); ++from)
    for (std::size_t to = 0; to < layouts.size(); ++to) {
      SCOPED_TRACE(text(layouts[from]) + ", then " + text(layouts[to]));
      std::string root = fmt::format("{}/{}-{}", folder.path(), from, to);
      train(layouts[from], make, root, 2);
      Tensors got = train(layouts[to], make, root, 4);
      ASSERT_EQ(got.size(), wanted.size());
      for (const auto& [name, values] : wanted)
        EXPECT_TRUE(at::allclose(got.at(name).to(at::kDouble), values.to(at::kDouble), 1e-9, 1e-9)) << name;
      if (HasFailure()) return;
    }
}

INSTANTIATE_TEST_SUITE_P(All, ModuleCheckpoint, testing::Values("Sgd", "Adam", "AdamW", "RmsProp", "Adagrad"),
                         [](const auto& each) { return each.param; });

// The files are the same, whatever the layout: whole tensors under the module's names.
TEST(ModuleCheckpointFiles, HoldWholeTensorsUnderTheModulesNames) {
  TestFolder folder;
  for (const Layout& l : layouts) {
    SCOPED_TRACE(text(l));
    std::string root = fmt::format("{}/{}-{}-{}", folder.path(), l.ranks, l.zero, l.wrapped);
    train(l, optimizers.at("AdamW"), root, 1);
    auto reader = CheckpointReader::open(root + "/step-00000001");
    ASSERT_TRUE(reader) << reader.error().what;
    EXPECT_THAT(reader->model_names(),
                testing::UnorderedElementsAre("first.weight", "first.bias", "back", "middle.weight", "last.weight",
                                              "last.bias", "calls"));
    EXPECT_EQ(reader->find_model("middle.weight")->shape, (std::vector<std::int64_t>{columns, columns}));
    // A tied parameter's state lies under its first name.
    EXPECT_THAT(reader->optimizer_names(), testing::Contains("back.exp_avg"));
    ASSERT_FALSE(HasFailure());
    EXPECT_EQ(reader->find_optimizer("back.exp_avg")->shape, (std::vector<std::int64_t>{7, columns}));
    EXPECT_EQ(reader->find_optimizer("last.bias.step")->shape, std::vector<std::int64_t>{});
    EXPECT_EQ(reader->find_optimizer("middle.weight.exp_avg"), nullptr);
    EXPECT_EQ(reader->optimizer_names().size(), 4u * 3 + 1);
    EXPECT_EQ(reader->ranks(), l.wrapped ? l.ranks : 1);
  }
}

TEST(ModuleCheckpointFiles, KeepTheLossScale) {
  TestFolder folder;
  const LossScaler::State kept{1024, 7};
  for (bool load : {false, true})
    on_ranks(2, [&](Job& job) {
      Net net;
      auto parallel = DataParallelModule::wrap(job, net, {.zero = 2, .loss_scale = 65536});
      ASSERT_TRUE(parallel);
      optim::AdamW adam((*parallel)->parameters(), 1e-3);
      LossScaler& scaler = *(*parallel)->loss_scaler();
      if (load) {
        ASSERT_TRUE(load_module(job, folder.path(), **parallel, &adam));
        EXPECT_EQ(scaler.state(), kept);
      } else {
        ASSERT_TRUE(scaler.restore(kept));
        ASSERT_TRUE(save_module(job, folder.path(), 1, **parallel, &adam));
      }
    });
}

// On every rank alike, with nothing written and nobody left waiting.
TEST(ModuleCheckpointErrors, OptimizersThatCannotBeSaved) {
  TestFolder folder;
  on_ranks(2, [&](Job& job) {
    Net net;
    auto parallel = DataParallelModule::wrap(job, net, {.zero = 1});
    ASSERT_TRUE(parallel);
    optim::LBFGS lbfgs((*parallel)->parameters());
    auto refused = save_module(job, folder.path(), 1, **parallel, &lbfgs);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().kind, ErrorKind::usage);
    EXPECT_THAT(refused.error().hint, testing::HasSubstr("AdamW"));
    optim::AdamW foreign(net.parameters(), 1e-3);  // not the shards
    refused = save_module(job, folder.path(), 1, **parallel, &foreign);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().kind, ErrorKind::usage);
    EXPECT_THAT(refused.error().hint, testing::HasSubstr("DataParallelModule::parameters()"));
  });
  EXPECT_TRUE(list_folder(folder.path())->empty());
}

TEST(ModuleCheckpointErrors, WhatDoesNotBelongToTheModule) {
  TestFolder folder;
  train({2, 3}, optimizers.at("AdamW"), folder.path(), 1);
  on_ranks(2, [&](Job& job) {
    nn::Linear other(3, 3);
    auto loaded = load_module(job, folder.path(), *other, nullptr);
    ASSERT_FALSE(loaded);
    EXPECT_THAT(loaded.error().what, testing::HasSubstr("holds no tensor weight"));
    Net net;
    optim::SGD sgd(net.parameters(), 0.1);
    loaded = load_module(job, folder.path(), net, &sgd);
    ASSERT_FALSE(loaded);
    EXPECT_THAT(loaded.error().what, testing::HasSubstr("the optimizer's options"));
    EXPECT_THAT(loaded.error().hint, testing::HasSubstr("same kind"));
    std::vector<optim::OptimizerParamGroup> groups{{{net.first->weight}}, {{net.last->weight}}};
    optim::AdamW two(groups, optim::AdamWOptions(0.1));
    loaded = load_module(job, folder.path(), net, &two);
    ASSERT_FALSE(loaded);
    EXPECT_THAT(loaded.error().what, testing::HasSubstr("1 parameter groups, this one has 2"));
  });
}

// A rank that cannot write is everybody's error, at once: rank 0 does not wait for its part.
TEST(ModuleCheckpointErrors, ARootThatIsAFile) {
  TestFolder folder;
  folder.write("root", "a file");
  on_ranks(3, [&](Job& job) {
    Net net;
    auto parallel = DataParallelModule::wrap(job, net, {.zero = 1});
    ASSERT_TRUE(parallel);
    optim::AdamW adam((*parallel)->parameters(), 1e-3);
    auto saved = save_module(job, folder.path() + "/root", 1, **parallel, &adam);
    ASSERT_FALSE(saved);
  });
}

}  // namespace
}  // namespace yoke
