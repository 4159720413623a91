// Memory that processes of one host share. It has no name anywhere (nothing in /dev/shm), and the kernel frees it with
// the last process that maps it, however that ends.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>

#include "core/base/result.h"
#include "os/fd.h"

namespace yoke {

class SharedMapping {
 public:
  SharedMapping() = default;
  SharedMapping(SharedMapping&& other) noexcept;
  SharedMapping& operator=(SharedMapping&& other) noexcept;
  ~SharedMapping();

  // New, zeroed. Pages are taken when they are touched. Kind environment: the kernel has no room.
  static Result<SharedMapping> create(std::size_t bytes);
  // That of another process (or this one), by its descriptor there. Kind environment when the process is gone or may
  // not be looked into.
  static Result<SharedMapping> open(pid_t owner, int fd, std::size_t bytes);

  std::byte* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }  // of a created one, for open(); -1 otherwise

 private:
  Fd fd_;
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// Equal for processes that can open each other's mappings: the same kernel, the same table of processes, the same user.
std::string host_identity();

// Sleeps until the word no longer holds `seen`, somebody rings, or the time is over; may also return early. The word
// may lie in a SharedMapping.
void wait_at_bell(std::atomic<std::uint32_t>& bell, std::uint32_t seen, double seconds);
// Changes the word and wakes who waits at it.
void ring(std::atomic<std::uint32_t>& bell);

// Sees the end of a process, also one that nobody has reaped.
class ProcessWatch {
 public:
  explicit ProcessWatch(pid_t pid);
  bool ended() const;

 private:
  Fd fd_;
};

}  // namespace yoke
