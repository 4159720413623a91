// What a training step sends, as counted by the communicators, beside what theory says of each ZeRO stage. With n data
// ranks in shard groups of d, of which there are c copies, G the bytes of the trainable parameters' gradients (fp32, or
// fp64 with fp64 parameters) and V those of their values:
//
//   0     2(n-1)/n G                                         all-reduce
//   1, 2  (d-1)/d (G + V)           + 2(c-1)/c G/d           reduce-scatter, all-gather; all-reduce between copies
//   3     (d-1)/d (G + 2V - held)   + 2(c-1)/c G/d           gathers in forward and backward, reduce-scatter
//
// With fp32 parameters stages 1 and 2 thus send what stage 0 does, and stage 3 half as much again. held: what backward
// still holds from forward, and the embedding, whose gradient does not need its values. From stage 2 on each
// micro-batch reduces, and in stage 3 each gathers.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <thread>

#include "train/comm/shared_memory.h"
#include "train/loop/trainer.h"

namespace yoke {
namespace {

constexpr std::int64_t sequence = 16, rows = 24, layers = 4, hidden = 64, ffn = 160, vocab = 256;
// Embedding and head; norms, attention of four heads (two for keys and values) and the three matrices of each layer.
constexpr std::int64_t parameters =
    2 * vocab * hidden + hidden + layers * (2 * hidden + 3 * hidden * hidden + 3 * hidden * ffn);

struct Case {
  at::ScalarType type;
  int zero, ranks, shard_group, micro_batches;
};

RunSpec spec_of(const Case& c) {
  RunSpec spec;
  spec.model.shape = {.family = Family::llama,
                      .layers = layers,
                      .hidden = hidden,
                      .heads = 4,
                      .kv_heads = 2,
                      .head_dim = 16,
                      .ffn = ffn,
                      .vocab = vocab,
                      .max_sequence = sequence};
  spec.data.sequence = sequence;
  spec.parallel.zero = c.zero;
  spec.parallel.shard_group = c.zero == 0 ? 0 : c.shard_group;
  spec.train.steps = 2;
  spec.train.global_batch = rows;
  spec.train.micro_batch = rows / c.ranks / c.micro_batches;
  spec.train.bucket_mib = 0.25;
  spec.train.first_bucket_mib = 0.01;
  return spec;
}

struct Sent {
  std::vector<std::int64_t> bytes;  // by step
  ShardMap map;
};

Sent train_rank(const Case& c, Communicator& communicator) {
  at::set_num_threads(1);
  Sent sent;
  auto trainer = Trainer::make(spec_of(c), communicator, at::kCPU, c.type);
  if (!trainer) return sent;
  fresh_parameters((*trainer)->model(), 5, [&](const std::string& name, const at::Tensor& values) {
    EXPECT_TRUE((*trainer)->set_parameter(name, values));
  });
  EXPECT_TRUE((*trainer)->publish_parameters());
  for (std::int64_t s = 0; s < 2; ++s) {
    std::int64_t before = (*trainer)->sent_bytes();
    Batch batch{rows / c.ranks, sequence, {}, {}, rows / c.ranks * sequence};
    batch.inputs.resize(static_cast<std::size_t>(batch.valid), 1);
    batch.targets.resize(static_cast<std::size_t>(batch.valid), 2);
    EXPECT_TRUE((*trainer)->step(s, batch, false));
    sent.bytes.push_back((*trainer)->sent_bytes() - before);
  }
  sent.map = (*trainer)->flat().map();
  return sent;
}

// Bytes of a step, for tensors of so many elements: all of them, and those that backward need not gather.
double theory(const Case& c, double elements, double not_again) {
  double n = c.ranks, d = c.zero == 0 ? 1 : c.shard_group, copies = n / d, times = c.micro_batches;
  double gradients = elements * (c.type == at::kDouble ? 8 : 4), width = static_cast<double>(c10::elementSize(c.type));
  if (c.zero == 0) return 2 * (n - 1) / n * gradients;
  double reduced = gradients * (c.zero == 1 ? 1 : times);
  double gathered = c.zero == 3 ? times * (2 * elements - not_again) * width : elements * width;
  return (d - 1) / d * (reduced + gathered) + 2 * (copies - 1) / copies * gradients / d;
}

TEST(SentBytes, AreThoseOfTheory) {
  for (at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble})
    for (int zero : {0, 1, 2, 3})
      for (auto [ranks, shard_group] : {std::pair(2, 2), {3, 3}, {4, 4}, {4, 2}, {4, 1}})
        for (int micro_batches : {1, 2}) {
          if (type == at::kDouble && (ranks != 3 || micro_batches == 2)) continue;
          if (zero == 0 && shard_group != ranks) continue;
          Case c{type, zero, ranks, shard_group, micro_batches};
          SCOPED_TRACE(fmt::format("{} zero {} ranks {} shard group {} micro-batches {}", c10::toString(type), zero,
                                   ranks, shard_group, micro_batches));
          auto communicators = thread_group("data", ranks, Seconds(60));
          std::vector<Sent> sent(communicators.size());
          std::vector<std::thread> threads;
          for (std::size_t r = 0; r < sent.size(); ++r)
            threads.emplace_back([&, r] { sent[r] = train_rank(c, *communicators[r]); });
          for (std::thread& thread : threads) thread.join();

          // Exactly, with the padding of the units, the loss with its counts, and the gradient norm of a shard group.
          const std::vector<ShardUnit>& units = sent[0].map.units;
          ASSERT_GE(units.size(), 4U);
          auto count = static_cast<double>(units.size());
          double small = 2.0 * (ranks - 1) / ranks * 24 + (zero > 0 ? 2.0 * (shard_group - 1) / shard_group * 8 : 0);
          auto padded = static_cast<double>(sent[0].map.padded()),
               not_again = static_cast<double>(units[0].padded + units[units.size() - 2].padded + units.back().padded);
          double expected = theory(c, padded, not_again) + small;
          // Each collective's bytes are rounded down.
          double rounding = 2 + count * (2 + 3 * micro_batches);
          for (const Sent& rank : sent) {
            ASSERT_EQ(rank.bytes.size(), 2U);
            for (std::int64_t bytes : rank.bytes) {
              EXPECT_LE(static_cast<double>(bytes), expected);
              EXPECT_GE(static_cast<double>(bytes), expected - rounding);
            }
          }
          // And near what the number of the model's parameters alone gives: padding costs less than a hundredth.
          double unpadded = 0, unpadded_not_again = 0;
          for (std::size_t u = 0; u < units.size(); ++u) {
            unpadded += static_cast<double>(units[u].numel);
            if (u == 0 || u + 2 >= units.size()) unpadded_not_again += static_cast<double>(units[u].numel);
          }
          EXPECT_EQ(unpadded, parameters);
          double least = theory(c, parameters, unpadded_not_again);
          EXPECT_GE(static_cast<double>(sent[0].bytes[0]), least - rounding);
          EXPECT_LE(static_cast<double>(sent[0].bytes[0]), least * 1.01 + small);
          // As people know it: twice (n-1)/n of the model without ZeRO and in stages 1 and 2, three times in stage 3.
          if (type == at::kFloat && micro_batches == 1 && shard_group == ranks) {
            double whole = 4.0 * parameters * (ranks - 1) / ranks;
            EXPECT_NEAR(static_cast<double>(sent[0].bytes[0]) / whole,
                        zero < 3 ? 2 : 3 - unpadded_not_again / parameters, 0.03);
          }
        }
}

}  // namespace
}  // namespace yoke
