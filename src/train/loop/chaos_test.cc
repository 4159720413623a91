// Ranks that die, stop or are late at any moment of ZeRO steps: nobody hangs past the timeout, nobody comes to a wrong
// result, and it is always the right rank that is named. `make chaos` does it two hundred times, `make test` a few.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <random>
#include <thread>

#include "train/comm/test_processes.h"
#include "train/loop/trainer.h"

namespace yoke {
namespace {

constexpr std::int64_t sequence = 16, steps = 6, rows = 12;
constexpr double timeout = 6;  // seconds

enum class Event { kill, stop, late };

struct Case {
  int ranks, victim, zero;
  std::int64_t shard_group;
  Event event;
  int after_us;
};

RunSpec spec_of(const Case& c) {
  RunSpec spec;
  spec.model.shape = {.family = Family::llama,
                      .layers = 3,
                      .hidden = 24,
                      .heads = 4,
                      .kv_heads = 2,
                      .head_dim = 6,
                      .ffn = 40,
                      .vocab = 37,
                      .max_sequence = sequence};
  spec.data.sequence = sequence;
  spec.parallel.zero = c.zero;
  spec.parallel.shard_group = c.shard_group;
  spec.train.steps = steps;
  spec.train.global_batch = rows;
  spec.train.micro_batch = 1;
  spec.train.bucket_mib = 0.004;
  spec.train.first_bucket_mib = 0.001;
  return spec;
}

Batch batch_of(std::int64_t step, int rank, int ranks) {
  std::mt19937 random(static_cast<unsigned>(step));
  Batch whole{rows / ranks, sequence, {}, {}, rows / ranks * sequence};
  for (std::int64_t i = 0; i < rows * sequence; ++i) {
    auto input = static_cast<std::int64_t>(random() % 37), target = static_cast<std::int64_t>(random() % 37);
    if (i / sequence / (rows / ranks) != rank) continue;
    whole.inputs.push_back(input);
    whole.targets.push_back(target);
  }
  return whole;
}

// The last loss, or the error.
Result<double> train(const Case& c, Communicator& communicator) {
  at::set_num_threads(1);
  YOKE_TRY(auto trainer, Trainer::make(spec_of(c), communicator, at::kCPU, at::kDouble));
  std::optional<Error> error;
  fresh_parameters(trainer->model(), 5, [&](const std::string& name, const at::Tensor& values) {
    if (auto set = trainer->set_parameter(name, values); !set) error = set.error();
  });
  if (error) return tl::unexpected(*error);
  YOKE_TRY_VOID(trainer->publish_parameters());
  double loss = 0;
  for (std::int64_t s = 0; s < steps; ++s) {
    YOKE_TRY(StepResult result, trainer->step(s, batch_of(s, communicator.rank(), c.ranks), false));
    loss = result.loss;
  }
  YOKE_TRY_VOID(communicator.barrier("end"));
  return loss;
}

bool names_only_the_victim(const Case& c, const Error& error) {
  std::string dead = fmt::format("rank {} ended before it", c.victim),
              absent = fmt::format("absent ranks: {} (stopped by a signal)", c.victim);
  return c.event == Event::kill ? error.what.ends_with(dead) : error.what.ends_with(absent);
}

// 0: right; else what was wrong.
int survivor(const Case& c, Communicator& communicator, double expected) {
  auto began = std::chrono::steady_clock::now();
  auto loss = train(c, communicator);
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  if (loss) return std::abs(*loss - expected) < 1e-10 ? 0 : 1;
  if (c.event == Event::late) return 2;
  if (!names_only_the_victim(c, loss.error())) {
    fmt::print(stderr, "rank {} says: {}\n", communicator.rank(), loss.error().what);
    return 3;
  }
  return seconds < 4 * timeout ? 0 : 4;
}

TEST(Chaos, TheRightRankIsNamedAndNobodyHangs) {
  const bool all = std::getenv("YOKE_WHOLE_CHAOS") != nullptr;
  const int count = all ? 200 : 12;
  std::mt19937 random(7);
  auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  for (int i = 0; i < count; ++i) {
    const int sizes[] = {2, 3, 4};
    Case c{};
    c.ranks = sizes[below(3)];
    c.victim = below(c.ranks);
    c.zero = below(4);
    c.shard_group = c.ranks == 4 && c.zero > 0 && below(2) == 0 ? 2 : 0;
    c.event = static_cast<Event>(i % 3);
    c.after_us = below(60'000);
    SCOPED_TRACE(fmt::format("case {}: {} of {} ranks, zero {}, shard group {}, event {}, after {} us", i, c.victim,
                             c.ranks, c.zero, c.shard_group, static_cast<int>(c.event), c.after_us));
    Case alone = c;
    alone.ranks = 1, alone.zero = 0, alone.shard_group = 0;
    auto one = thread_group("data", 1, Seconds(60));
    auto expected = train(alone, *one[0]);
    ASSERT_TRUE(expected);
    auto pids = start_processes(c.ranks, Seconds(timeout), [&](Communicator& communicator) {
      if (communicator.rank() != c.victim) return survivor(c, communicator, *expected);
      std::thread event([&c] {
        std::this_thread::sleep_for(std::chrono::microseconds(c.after_us));
        if (c.event != Event::late) kill(getpid(), c.event == Event::kill ? SIGKILL : SIGSTOP);
      });
      event.detach();
      if (c.event == Event::late) std::this_thread::sleep_for(std::chrono::microseconds(c.after_us));
      auto loss = train(c, communicator);
      // It may have finished before anything happened.
      return loss && std::abs(*loss - *expected) < 1e-10 ? 0 : 5;
    });
    for (int r = 0; r < c.ranks; ++r) {
      if (r == c.victim) continue;
      EXPECT_EQ(wait_for(pids[static_cast<std::size_t>(r)]), 0) << "rank " << r;
    }
    if (c.event == Event::stop) kill(pids[static_cast<std::size_t>(c.victim)], SIGKILL);
    int victim = wait_for(pids[static_cast<std::size_t>(c.victim)]);
    EXPECT_TRUE(victim == 0 || (victim == -SIGKILL && c.event != Event::late)) << victim;
  }
}

}  // namespace
}  // namespace yoke
