// The ranks that train on different data, cut into shard groups and copies (hybrid sharding): shard groups are runs of
// neighbouring ranks, since these are close to each other.
#pragma once

#include <cstdint>
#include <memory>

#include "core/base/result.h"
#include "train/parallel/flat_parameters.h"

namespace yoke {

class DataAxis {
 public:
  // Without ZeRO there are only copies. shard_group: ranks of a shard group; 0: all. Every rank of `all` calls it; kind
  // usage when shard_group does not divide the ranks. `all` must outlive it.
  static Result<std::unique_ptr<DataAxis>> make(Communicator& all, int zero, std::int64_t shard_group);

  DataGroups groups() const { return groups_; }
  Communicator& all() const { return all_; }
  // Bytes that this rank has sent in all its groups.
  std::int64_t sent_bytes() const;

 private:
  explicit DataAxis(Communicator& all) : all_(all) {}

  Communicator& all_;
  std::unique_ptr<Communicator> own_shard_, own_replica_;  // where the group is not all of the axis
  DataGroups groups_;
};

}  // namespace yoke
