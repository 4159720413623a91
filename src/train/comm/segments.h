// Large buffers of this process that the other ranks of a host map too.
#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "os/shared_mapping.h"
#include "train/comm/group_memory.h"

namespace yoke {

// This rank's own. Tensors may outlive the object.
class OwnSegments {
 public:
  explicit OwnSegments(RankBlock& block) : pool_(std::make_shared<Pool>(block)) {}

  // A flat tensor in a segment of its own (one that was freed before, if it has the size); nothing when the system
  // gives no more, so that the caller takes ordinary memory.
  std::optional<at::Tensor> empty(std::int64_t numel, at::TensorOptions options);
  // Where a tensor's first element lies; segment -1 when it is not one of these.
  Place find(const at::Tensor& tensor) const;

 private:
  struct Pool {
    explicit Pool(RankBlock& b) : block(&b) {}
    RankBlock* block;
    std::mutex mutex;  // tensors are freed on any thread
    std::vector<SharedMapping> mappings;
    std::map<std::size_t, std::vector<std::size_t>> free;  // indices by size
  };
  std::shared_ptr<Pool> pool_;
};

// Another rank's, mapped when they are first needed.
class PeerSegments {
 public:
  // The address of a place; null when the segment cannot be mapped.
  std::byte* find(const RankBlock& block, Place place);

 private:
  std::map<std::int64_t, SharedMapping> mapped_;
};

}  // namespace yoke
