#include "train/parallel/data_axis.h"

#include "train/comm/shared_memory.h"

namespace yoke {

Result<std::unique_ptr<DataAxis>> DataAxis::make(Communicator& all, int zero, std::int64_t shard_group) {
  std::unique_ptr<DataAxis> axis(new DataAxis(all));
  int size = all.size(), shards = zero == 0 ? 1 : shard_group == 0 ? size : static_cast<int>(shard_group);
  if (shards < 1 || size % shards != 0)
    return fail(ErrorKind::usage, fmt::format("a shard group of {} ranks does not divide {} data ranks", shards, size),
                "set parallel.shard_group to a divisor of the number of data ranks");
  auto alone = [&](const char* name) { return std::move(thread_group(name, 1, Seconds(1)).front()); };
  if (shards == 1) {
    axis->own_shard_ = alone("shard");
    axis->groups_ = {axis->own_shard_.get(), &all};
  } else if (shards == size) {
    axis->own_replica_ = alone("replica");
    axis->groups_ = {&all, axis->own_replica_.get()};
  } else {
    std::vector<int> neighbours, alike;
    for (int r = 0; r < size; ++r) {
      if (r / shards == all.rank() / shards) neighbours.push_back(r);
      if (r % shards == all.rank() % shards) alike.push_back(r);
    }
    YOKE_TRY(axis->own_shard_, all.subgroup("shard", neighbours));
    YOKE_TRY(axis->own_replica_, all.subgroup("replica", alike));
    axis->groups_ = {axis->own_shard_.get(), axis->own_replica_.get()};
  }
  return axis;
}

std::int64_t DataAxis::sent_bytes() const {
  std::int64_t bytes = all_.sent_bytes();
  if (own_shard_ != nullptr) bytes += own_shard_->sent_bytes();
  if (own_replica_ != nullptr) bytes += own_replica_->sent_bytes();
  return bytes;
}

}  // namespace yoke
