#include "core/parallel/shard_map.h"

#include <gtest/gtest.h>
#include <rapidcheck/gtest.h>

namespace yoke {
namespace {

std::vector<ParameterSize> sizes(const std::vector<std::int64_t>& numels) {
  std::vector<ParameterSize> parameters;
  for (std::int64_t n : numels) parameters.push_back({"p" + std::to_string(parameters.size()), n});
  return parameters;
}

TEST(ShardMap, BucketsAreCutFromTheLastParameter) {
  // The last alone fills the small first bucket; then about 1000 elements each.
  EXPECT_EQ(bucket_units(sizes({1000, 10, 500, 500, 200}), 1000, 200), (std::vector<int>{0, 0, 1, 1, 2}));
  EXPECT_EQ(bucket_units(sizes({5}), 1, 1), (std::vector<int>{0}));
  auto some_frozen = sizes({1000, 10, 500});
  some_frozen[1].trainable = false;
  EXPECT_EQ(bucket_units(some_frozen, 1000, 500), (std::vector<int>{0, 2, 1}));
}

TEST(ShardMap, LayersAreUnits) {
  std::vector<ParameterSize> llama{{"model.embed_tokens.weight", 1000},
                                   {"model.layers.0.norm.weight", 10},
                                   {"model.layers.0.q.weight", 100},
                                   {"model.layers.10.norm.weight", 10},
                                   {"model.layers.10.q.weight", 100, false},
                                   {"model.norm.weight", 10},
                                   {"lm_head.weight", 1000}};
  EXPECT_EQ(layer_units(llama, 0), (std::vector<int>{0, 1, 1, 2, 3, 4, 5}));
  // The small ones join their neighbours of the same kind.
  EXPECT_EQ(layer_units(llama, 50), (std::vector<int>{0, 1, 1, 1, 2, 1, 3}));
  ShardMap map = make_shard_map(llama, layer_units(llama, 0), 4);
  EXPECT_EQ(map.units[1].name, "model.layers.0");
  EXPECT_EQ(map.units[1].numel, 110);
  EXPECT_EQ(map.units[1].padded, 128);
  EXPECT_FALSE(map.units[3].trainable);
}

TEST(ShardMap, PartsOfAnEntry) {
  ShardMap map = make_shard_map(sizes({40, 60}), {0, 0}, 2);  // 128 padded: shards of 64
  EXPECT_EQ(part_in_shard(map, map.entries[0], 0), (ShardPart{0, 0, 40}));
  EXPECT_EQ(part_in_shard(map, map.entries[0], 1), (ShardPart{}));
  EXPECT_EQ(part_in_shard(map, map.entries[1], 0), (ShardPart{0, 40, 24}));
  EXPECT_EQ(part_in_shard(map, map.entries[1], 1), (ShardPart{24, 0, 36}));
}

// Whatever the sizes, units and ranks: every element is in exactly one shard, and shards are equal.
RC_GTEST_PROP(ShardMap, EveryElementIsInOneShard, ()) {
  auto numels =
      *rc::gen::nonEmpty(rc::gen::container<std::vector<std::int64_t>>(rc::gen::inRange<std::int64_t>(1, 700)));
  int shards = *rc::gen::inRange(1, 10);
  auto parameters = sizes(numels);
  auto units = *rc::gen::element(bucket_units(parameters, *rc::gen::inRange(1, 2000), *rc::gen::inRange(1, 500)),
                                 layer_units(parameters, *rc::gen::inRange(0, 2000)));
  ShardMap map = make_shard_map(parameters, units, shards);
  std::int64_t next = 0;
  for (const ShardUnit& unit : map.units) {
    RC_ASSERT(unit.first == next);
    RC_ASSERT(unit.padded % shards == 0 && unit.padded >= unit.numel && unit.padded < unit.numel + 16 * shards);
    next += unit.padded;
  }
  RC_ASSERT(map.padded() == next);
  for (const ShardEntry& entry : map.entries) {
    std::int64_t covered = 0;
    for (int r = 0; r < shards; ++r) {
      ShardPart part = part_in_shard(map, entry, r);
      if (part.numel == 0) continue;
      RC_ASSERT(part.first == covered);
      RC_ASSERT(r * map.shard(entry.unit) + part.at == entry.offset + part.first);
      RC_ASSERT(part.at + part.numel <= map.shard(entry.unit));
      covered += part.numel;
    }
    RC_ASSERT(covered == entry.numel);
  }
}

}  // namespace
}  // namespace yoke
