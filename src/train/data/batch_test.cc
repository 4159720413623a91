#include "train/data/batch.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <chrono>
#include <numeric>
#include <set>

namespace yoke {
namespace {

struct Data {
  TemporaryFolder folder;
  Tokens tokens;
};

// Token i is i.
std::unique_ptr<Data> counting(std::uint32_t count) {
  auto data = std::make_unique<Data>();
  std::vector<std::uint32_t> values(count);
  std::iota(values.begin(), values.end(), 0U);
  TokenWriter writer(count);
  writer.append(values);
  const std::string path = data->folder / "tokens.bin";
  EXPECT_TRUE(writer.write(path));
  data->tokens = Tokens({std::make_shared<const TokenFile>(TokenFile::open(path).value())}, count);
  return data;
}

Sampling sampling_of(const Tokens& tokens, std::int64_t sequence, std::int64_t global_batch, DataOrder order) {
  return {.seed = 3, .order = order, .sequence = sequence, .global_batch = global_batch, .tokens = tokens.size()};
}

bool same(const Batch& a, const Batch& b) {
  return a.rows == b.rows && a.sequence == b.sequence && a.valid == b.valid && a.inputs == b.inputs &&
         a.targets == b.targets;
}

TEST(Batch, TargetsAreTheNextTokens) {
  const auto data = counting(13);
  const Batch batch = make_batch(data->tokens, sampling_of(data->tokens, 4, 2, DataOrder::sequential), 1, 0, 2);
  EXPECT_EQ(batch.rows, 2);
  EXPECT_EQ(batch.sequence, 4);
  EXPECT_EQ(batch.valid, 8);
  // Three sequences: step 1 takes the last one and, in the next epoch, the first.
  EXPECT_EQ(batch.inputs, (std::vector<std::int64_t>{8, 9, 10, 11, 0, 1, 2, 3}));
  EXPECT_EQ(batch.targets, (std::vector<std::int64_t>{9, 10, 11, 12, 1, 2, 3, 4}));
}

TEST(Batch, ARowIsTheSequenceThatTheSamplerSays) {
  const auto data = counting(1000);
  const Sampling sampling = sampling_of(data->tokens, 7, 10, DataOrder::shuffled);
  const Batch batch = make_batch(data->tokens, sampling, 5, 3, 4);
  for (std::int64_t row = 0; row < 4; ++row)
    EXPECT_EQ(batch.inputs[static_cast<std::size_t>(row) * 7],
              static_cast<std::int64_t>(sequence_index(sampling, 5, 3 + row) * 7));
}

TEST(BatchPrefetcher, GivesWhatMakeBatchMakes) {
  const auto data = counting(2000);
  ASSERT_TRUE(rc::check("any depth, ranks and steps", [&] {
    const auto ranks = *rc::gen::element<std::int64_t>(1, 2, 3, 4, 6, 12);
    const auto first_step = *rc::gen::inRange<std::int64_t>(0, 50);
    const auto steps = *rc::gen::inRange<std::int64_t>(0, 8);
    const auto depth = *rc::gen::inRange<std::size_t>(1, 6);
    const auto recycled = *rc::gen::arbitrary<bool>();
    const Sampling sampling =
        sampling_of(data->tokens, *rc::gen::inRange<std::int64_t>(1, 64), 12, DataOrder::shuffled);
    std::vector<std::unique_ptr<BatchPrefetcher>> prefetchers;
    for (std::int64_t rank = 0; rank < ranks; ++rank)
      prefetchers.push_back(std::make_unique<BatchPrefetcher>(
          data->tokens, sampling, PrefetchSpec{rank, ranks, first_step, first_step + steps, depth}));
    for (std::int64_t step = first_step; step < first_step + steps; ++step) {
      Batch joined{.sequence = sampling.sequence};
      for (auto& prefetcher : prefetchers) {  // in the order of the ranks they make the global batch
        Batch batch = prefetcher->next();
        joined.rows += batch.rows;
        joined.valid += batch.valid;
        joined.inputs.insert(joined.inputs.end(), batch.inputs.begin(), batch.inputs.end());
        joined.targets.insert(joined.targets.end(), batch.targets.begin(), batch.targets.end());
        if (recycled) prefetcher->recycle(std::move(batch));
      }
      RC_ASSERT(same(joined, make_batch(data->tokens, sampling, step, 0, 12)));
    }
  }));
}

TEST(BatchPrefetcher, RecycledBatchesAreAllItNeeds) {
  const auto data = counting(2000);
  constexpr std::size_t depth = 3;
  BatchPrefetcher prefetcher(data->tokens, sampling_of(data->tokens, 16, 4, DataOrder::shuffled),
                             {.last_step = 200, .depth = depth});
  std::set<const std::int64_t*> buffers;
  for (int step = 0; step < 200; ++step) {
    Batch batch = prefetcher.next();
    buffers.insert(batch.inputs.data());
    buffers.insert(batch.targets.data());
    prefetcher.recycle(std::move(batch));
  }
  // Ready, being filled, and in use.
  EXPECT_LE(buffers.size(), 2 * (depth + 2));
}

TEST(BatchPrefetcher, StopsWithBatchesLeft) {
  const auto data = counting(2000);
  const Sampling sampling = sampling_of(data->tokens, 16, 4, DataOrder::shuffled);
  for (int taken = 0; taken < 5; ++taken) {
    BatchPrefetcher prefetcher(data->tokens, sampling, {.last_step = std::int64_t{1} << 40, .depth = 2});
    for (int i = 0; i < taken; ++i) prefetcher.next();
  }
}

TEST(BatchPrefetcher, CountsTheTimeThatNextWaited) {
  const auto data = counting(2000);
  // Taking batches is quicker than making them, so sooner or later one is not there yet.
  const Sampling sampling = sampling_of(data->tokens, 64, 500, DataOrder::shuffled);
  const auto start = std::chrono::steady_clock::now();
  BatchPrefetcher prefetcher(data->tokens, sampling, {.last_step = 10000});
  double waited = 0;
  for (int step = 0; step < 10000 && waited == 0; ++step) {
    prefetcher.next();
    waited = prefetcher.take_waited_seconds();
  }
  const double elapsed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  EXPECT_GT(waited, 0);
  EXPECT_LE(waited, elapsed);
  EXPECT_EQ(prefetcher.take_waited_seconds(), 0);
}

TEST(BatchPrefetcher, ABatchAfterTheLastStepIsAMistake) {
  const auto data = counting(100);
  const Sampling sampling = sampling_of(data->tokens, 4, 2, DataOrder::shuffled);
  EXPECT_DEATH(
      {
        BatchPrefetcher prefetcher(data->tokens, sampling, {.last_step = 1});
        prefetcher.next();
        prefetcher.next();
      },
      "after the last step, 1");
}

}  // namespace
}  // namespace yoke
