#include "train/comm/memory.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <sys/mman.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <new>
#include <vector>

namespace yoke {
namespace {

thread_local MemoryPart current_part = MemoryPart::activations;

// Sits before each block. Blocks are aligned to 64 bytes, as libtorch's own are.
struct alignas(64) Header {
  std::size_t capacity;  // of the block after the header
  std::size_t size;      // asked for
  MemoryPart part;
};
static_assert(sizeof(Header) == 64);

constexpr std::size_t map_from = std::size_t{1} << 20;  // larger blocks are mapped, so that they can be given back
constexpr std::size_t huge_page = std::size_t{2} << 20;

// Sizes are rounded up to one of eight steps between powers of two, so that nearly equal ones share blocks; at most 1/8
// is lost.
std::size_t rounded(std::size_t size) {
  size = std::max<std::size_t>(size, 64);
  std::size_t step = std::max<std::size_t>(std::bit_floor(size) / 8, 64);
  return (size + step - 1) / step * step;
}

class CountingAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t size) override {
    if (size == 0) return {nullptr, nullptr, &release, c10::Device(c10::kCPU)};
    Header* header = take(rounded(size));
    header->size = size;
    header->part = current_part;
    count(header->part, static_cast<std::int64_t>(size));
    void* data = header + 1;
    return {data, data, &release, c10::Device(c10::kCPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override { return &release; }
  void copy_data(void* to, const void* from, std::size_t size) const override { std::memcpy(to, from, size); }

  void count(MemoryPart part, std::int64_t bytes) {
    std::lock_guard lock(mutex_);
    auto p = static_cast<std::size_t>(part);
    counts_.now[p] += bytes;
    total_ += bytes;
    counts_.peak[p] = std::max(counts_.peak[p], counts_.now[p]);
    counts_.peak_total = std::max(counts_.peak_total, total_);
    highest_total_ = std::max(highest_total_, total_);
  }

  MemoryCounts counts() {
    std::lock_guard lock(mutex_);
    return counts_;
  }

  void reset_peaks() {
    std::lock_guard lock(mutex_);
    counts_.peak = counts_.now;
    counts_.peak_total = total_;
  }

 private:
  static void release(void* data);

  Header* take(std::size_t capacity) {
    std::vector<Header*> surplus;
    {
      std::lock_guard lock(mutex_);
      auto found = free_.find(capacity);
      if (found != free_.end() && !found->second.empty()) {
        Header* header = found->second.back();
        found->second.pop_back();
        counts_.held -= static_cast<std::int64_t>(capacity);
        return header;
      }
      // A new block: first give back what is kept beyond a quarter of the most that was ever in use, the largest first.
      std::int64_t allowed = std::max<std::int64_t>(highest_total_ / 4, 16 << 20);
      for (auto it = free_.rbegin(); it != free_.rend() && counts_.held + static_cast<std::int64_t>(capacity) > allowed;
           ++it)
        while (!it->second.empty() && it->first >= map_from &&
               counts_.held + static_cast<std::int64_t>(capacity) > allowed) {
          surplus.push_back(it->second.back());
          it->second.pop_back();
          counts_.held -= static_cast<std::int64_t>(it->first);
        }
    }
    for (Header* header : surplus) give_back(header);
    return fresh(capacity);
  }

  static Header* fresh(std::size_t capacity) {
    std::size_t bytes = capacity + sizeof(Header);
    void* memory = nullptr;
    if (capacity >= map_from) {
      memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (memory == MAP_FAILED) memory = nullptr;
      if (memory != nullptr && bytes >= 2 * huge_page) madvise(memory, bytes, MADV_HUGEPAGE);
    } else {
      memory = std::aligned_alloc(64, bytes);
    }
    if (memory == nullptr) throw std::bad_alloc();
    auto* header = new (memory) Header;
    header->capacity = capacity;
    return header;
  }

  static void give_back(Header* header) {
    if (header->capacity >= map_from)
      munmap(header, header->capacity + sizeof(Header));
    else
      std::free(header);
  }

  void put(Header* header) {
    std::lock_guard lock(mutex_);
    counts_.now[static_cast<std::size_t>(header->part)] -= static_cast<std::int64_t>(header->size);
    total_ -= static_cast<std::int64_t>(header->size);
    counts_.held += static_cast<std::int64_t>(header->capacity);
    free_[header->capacity].push_back(header);
  }

  std::mutex mutex_;
  std::map<std::size_t, std::vector<Header*>> free_;  // by capacity
  MemoryCounts counts_;
  std::int64_t total_ = 0, highest_total_ = 0;
};

// Never destroyed: tensors of other static objects may be freed after it would be.
CountingAllocator& allocator() {
  static auto* instance = new CountingAllocator;
  return *instance;
}

void CountingAllocator::release(void* data) {
  if (data != nullptr) allocator().put(static_cast<Header*>(data) - 1);
}

}  // namespace

MemoryScope::MemoryScope(MemoryPart part) : before_(current_part) { current_part = part; }
MemoryScope::~MemoryScope() { current_part = before_; }

MemoryPart current_memory_part() { return current_part; }

void count_memory(MemoryPart part, std::int64_t bytes) { allocator().count(part, bytes); }

void install_counting_allocator() { c10::SetCPUAllocator(&allocator(), /*priority=*/255); }

MemoryCounts memory_counts() { return allocator().counts(); }

void reset_memory_peaks() { allocator().reset_peaks(); }

}  // namespace yoke
