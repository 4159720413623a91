#include "train/comm/segments.h"

#include <ATen/ATen.h>
#include <sys/mman.h>

#include "train/comm/memory.h"

namespace yoke {

std::optional<at::Tensor> OwnSegments::empty(std::int64_t numel, at::TensorOptions options) {
  std::size_t bytes = static_cast<std::size_t>(numel) * options.dtype().itemsize();
  if (bytes == 0) return std::nullopt;
  std::lock_guard lock(pool_->mutex);
  std::size_t index = pool_->mappings.size();
  if (auto& free = pool_->free[bytes]; !free.empty()) {
    index = free.back();
    free.pop_back();
  } else {
    if (index == max_segments) return std::nullopt;
    auto mapping = SharedMapping::create(bytes);
    if (!mapping) return std::nullopt;
    Segment& segment = pool_->block->segments[index];
    segment.fd.store(mapping->fd());
    segment.bytes.store(static_cast<std::int64_t>(bytes));
    pool_->mappings.push_back(*std::move(mapping));
  }
  MemoryPart part = current_memory_part();
  count_memory(part, static_cast<std::int64_t>(bytes));
  auto release = [pool = pool_, index, bytes, part](void*) {
    count_memory(part, -static_cast<std::int64_t>(bytes));
    std::lock_guard guard(pool->mutex);
    pool->free[bytes].push_back(index);
  };
  return at::from_blob(pool_->mappings[index].data(), {numel}, release, options);
}

Place OwnSegments::find(const at::Tensor& tensor) const {
  const auto* data = static_cast<const std::byte*>(tensor.const_data_ptr());
  std::lock_guard lock(pool_->mutex);
  for (std::size_t i = 0; i < pool_->mappings.size(); ++i) {
    const SharedMapping& mapping = pool_->mappings[i];
    if (data >= mapping.data() && data < mapping.data() + mapping.bytes())
      return {static_cast<std::int64_t>(i), static_cast<std::uint64_t>(data - mapping.data())};
  }
  return {};
}

std::byte* PeerSegments::find(const RankBlock& block, Place place) {
  auto found = mapped_.find(place.segment);
  if (found == mapped_.end()) {
    const Segment& segment = block.segments[static_cast<std::size_t>(place.segment)];
    auto mapping =
        SharedMapping::open(block.pid.load(), segment.fd.load(), static_cast<std::size_t>(segment.bytes.load()));
    if (!mapping) return nullptr;
    found = mapped_.emplace(place.segment, *std::move(mapping)).first;
  }
  return found->second.data() + place.offset;
}

}  // namespace yoke
