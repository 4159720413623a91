// Memory counted by part. On a CPU libtorch's allocations come from an allocator of ours that keeps freed blocks for
// reuse (a training step asks for the same sizes again and again, and fresh pages cost more than the arithmetic on
// them) and counts them.
//
// Counts are of the whole process. Parts are those of the thread's innermost MemoryScope at the time of allocation;
// without one, activations.
#pragma once

#include <array>
#include <cstdint>

namespace yoke {

enum class MemoryPart { activations, parameters, gradients, optimizer, communication, checkpoint };
inline constexpr int memory_parts = 6;

class MemoryScope {
 public:
  explicit MemoryScope(MemoryPart part);
  ~MemoryScope();
  MemoryScope(const MemoryScope&) = delete;
  MemoryScope& operator=(const MemoryScope&) = delete;

 private:
  MemoryPart before_;
};

MemoryPart current_memory_part();
// Memory that does not come from the allocator (shared with other ranks, say) and counts all the same; negative when it
// goes.
void count_memory(MemoryPart part, std::int64_t bytes);

struct MemoryCounts {
  std::array<std::int64_t, memory_parts> now{};   // bytes by part
  std::array<std::int64_t, memory_parts> peak{};  // the highest of each part
  std::int64_t peak_total = 0;                    // the highest of their sum
  std::int64_t held = 0;                          // freed but kept for reuse
};

// Makes libtorch allocate CPU tensors from it. Call once, before the first tensor.
void install_counting_allocator();

MemoryCounts memory_counts();
// The peaks start again from what is there now.
void reset_memory_peaks();

}  // namespace yoke
