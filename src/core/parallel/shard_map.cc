#include "core/parallel/shard_map.h"

#include <algorithm>
#include <map>

#include "core/base/result.h"
#include "core/base/text.h"

namespace yoke {
namespace {

constexpr std::int64_t alignment = 16;  // elements: a shard begins on a cache line in every precision

bool is_number(const std::string& text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

std::string layer_name(const std::string& parameter) {
  std::vector<std::string> parts = split(parameter, '.');
  std::string name = parts.front();
  for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
    if (!is_number(parts[i])) continue;
    name = parts.front();
    for (std::size_t j = 1; j <= i; ++j) name += "." + parts[j];
    return name;
  }
  // Without a number the module that holds it: "model.norm.weight" is no part of "model.embed_tokens.weight".
  if (parts.size() > 1) name = parameter.substr(0, parameter.rfind('.'));
  return name;
}

}  // namespace

ShardPart part_in_shard(const ShardMap& map, const ShardEntry& entry, int shard) {
  std::int64_t size = map.shard(entry.unit), begin = shard * size;
  std::int64_t first = std::max(entry.offset, begin), last = std::min(entry.offset + entry.numel, begin + size);
  if (last <= first) return {};
  return {first - entry.offset, first - begin, last - first};
}

std::vector<int> bucket_units(const std::vector<ParameterSize>& parameters, double bucket_elements,
                              double first_bucket_elements) {
  std::vector<int> unit_of(parameters.size());
  int buckets = 0;
  double room = 0;
  bool empty = true;
  for (std::size_t i = parameters.size(); i-- > 0;) {
    if (!parameters[i].trainable) continue;
    auto numel = static_cast<double>(parameters[i].numel);
    if (buckets == 0 || room <= 0 || (numel > 2 * room && !empty)) {
      room = buckets == 0 ? first_bucket_elements : bucket_elements;
      ++buckets;
    }
    unit_of[i] = buckets - 1;
    empty = false;
    room -= numel;
  }
  for (std::size_t i = 0; i < parameters.size(); ++i)
    unit_of[i] = parameters[i].trainable ? buckets - 1 - unit_of[i] : buckets;
  return unit_of;
}

std::vector<int> layer_units(const std::vector<ParameterSize>& parameters, double least_elements) {
  struct Group {
    double numel = 0;
    int unit = 0;
  };
  std::map<std::pair<std::string, bool>, std::size_t> known;
  std::vector<Group> groups;
  std::vector<std::size_t> group_of(parameters.size());
  std::vector<bool> trainable;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    auto [found, added] = known.try_emplace({layer_name(parameters[i].name), parameters[i].trainable}, groups.size());
    if (added) {
      groups.emplace_back();
      trainable.push_back(parameters[i].trainable);
    }
    group_of[i] = found->second;
    groups[found->second].numel += static_cast<double>(parameters[i].numel);
  }
  // Neighbours in the order of first appearance, of the same kind.
  int units = 0;
  std::map<bool, std::size_t> last;  // the last group of each kind
  for (std::size_t g = 0; g < groups.size(); ++g) {
    auto before = last.find(trainable[g]);
    bool join =
        before != last.end() && (groups[g].numel < least_elements || groups[before->second].numel < least_elements);
    groups[g].unit = join ? groups[before->second].unit : units++;
    if (join) groups[g].numel += groups[before->second].numel;
    last[trainable[g]] = g;
  }
  std::vector<int> unit_of(parameters.size());
  for (std::size_t i = 0; i < parameters.size(); ++i) unit_of[i] = groups[group_of[i]].unit;
  return unit_of;
}

ShardMap make_shard_map(const std::vector<ParameterSize>& parameters, const std::vector<int>& unit_of, int shards) {
  YOKE_CHECK(parameters.size() == unit_of.size() && shards >= 1, "{} parameters, {} units, {} shards",
             parameters.size(), unit_of.size(), shards);
  ShardMap map;
  map.shards = shards;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    auto unit = static_cast<std::size_t>(unit_of[i]);
    if (map.units.size() <= unit) map.units.resize(unit + 1);
    ShardUnit& u = map.units[unit];
    if (u.entries == 0) u.name = layer_name(parameters[i].name), u.trainable = parameters[i].trainable;
    YOKE_CHECK(u.trainable == parameters[i].trainable, "unit {} mixes trainable and frozen parameters", u.name);
    map.entries.push_back({unit_of[i], u.numel, parameters[i].numel});
    u.numel += parameters[i].numel;
    ++u.entries;
  }
  std::int64_t first = 0;
  for (ShardUnit& unit : map.units) {
    std::int64_t step = alignment * shards;
    unit.padded = (unit.numel + step - 1) / step * step;
    unit.first = first;
    first += unit.padded;
  }
  return map;
}

}  // namespace yoke
