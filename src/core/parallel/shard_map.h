// How parameters are cut over the ranks of a shard group: grouped into units, each flat, padded and dealt in equal
// shards. Buckets of the gradient reduction, gathers of ZeRO 3, the optimizer, the gradient norm and checkpoints all
// read the same map.
//
// A unit is what travels in one collective. Its parameters lie one after the other in the order given; at the end it is
// padded so that every rank's shard has the same size. Rank r of d holds elements [r, r + 1) * padded / d of each unit.
// Rajbhandari et al. 2020 (ZeRO, arXiv 1910.02054) is the idea: one d-th of the optimizer state (stage 1), of the
// gradients (2), of the parameters (3).
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace yoke {

struct ParameterSize {
  std::string name;
  std::int64_t numel = 0;
  bool trainable = true;
};

struct ShardEntry {
  int unit = 0;
  std::int64_t offset = 0;  // elements, in the unit
  std::int64_t numel = 0;

  bool operator==(const ShardEntry&) const = default;
};

struct ShardUnit {
  std::string name;
  std::int64_t numel = 0;   // of its parameters
  std::int64_t padded = 0;  // a multiple of the number of shards
  std::int64_t first = 0;   // of the unit, where all units lie one after the other
  int entries = 0;
  bool trainable = true;

  bool operator==(const ShardUnit&) const = default;
};

struct ShardMap {
  int shards = 1;
  std::vector<ShardUnit> units;
  std::vector<ShardEntry> entries;  // by parameter

  std::int64_t padded() const { return units.empty() ? 0 : units.back().first + units.back().padded; }
  std::int64_t shard(int unit) const { return units[static_cast<std::size_t>(unit)].padded / shards; }
};

// The part of an entry that a rank's shard of its unit holds: elements [first, first + numel) of the entry, which lie
// from `at` on in the shard. numel may be 0.
struct ShardPart {
  std::int64_t first = 0, at = 0, numel = 0;

  bool operator==(const ShardPart&) const = default;
};
ShardPart part_in_shard(const ShardMap& map, const ShardEntry& entry, int shard);

// Buckets: runs of parameters, cut from the last to the first, since backward comes to them in about that order. The
// first bucket (of the last parameters) is small, so that communication starts early. A bucket is closed when it has
// reached its size, or when the next parameter would take it far beyond. Parameters that need no gradient make the last
// unit. Returns each parameter's unit; units are numbered in the order of the parameters.
std::vector<int> bucket_units(const std::vector<ParameterSize>& parameters, double bucket_elements,
                              double first_bucket_elements);

// Layers, for gathering before use: parameters whose names agree up to the first number ("model.layers.3.") or, without
// one, up to the last dot make a unit; those that need no gradient make units of their own. A unit below
// least_elements joins its neighbour.
std::vector<int> layer_units(const std::vector<ParameterSize>& parameters, double least_elements);

ShardMap make_shard_map(const std::vector<ParameterSize>& parameters, const std::vector<int>& unit_of, int shards);

}  // namespace yoke
