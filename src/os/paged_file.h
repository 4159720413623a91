// State that does not fit in memory: a file of pages, some of which are in memory at a time. A background thread reads
// those that are expected and writes those that were changed, so that who works through the pages in a known order
// waits for the disk only when it is slower than the work.
//
// The file has no name (nothing is left of it however the process ends), and its room on the disk is taken when it is
// made, so that a full disk is an error at the start. Errors are of kind environment and name the folder. Used from one
// thread.
#pragma once

#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "core/base/result.h"
#include "os/fd.h"

namespace yoke {

class PagedFile {
 public:
  // Pages of these sizes, zeroed. `memory` holds them while they are needed: two buffers at least, three to read, work
  // and write at the same time, each as large as the largest page. It must outlive the file.
  static Result<std::unique_ptr<PagedFile>> create(const std::string& folder, const std::vector<std::size_t>& pages,
                                                   std::vector<std::span<std::byte>> memory);
  ~PagedFile();
  PagedFile(const PagedFile&) = delete;
  PagedFile& operator=(const PagedFile&) = delete;

  // The page will be opened soon. A hint: it is forgotten when there is no room in memory.
  void expect(std::size_t page);
  // The page's bytes, in memory until close(). One buffer must be neither open nor expected.
  Result<std::span<std::byte>> open(std::size_t page);
  // For one that will be written as a whole: what it held is not read.
  Result<std::span<std::byte>> open_new(std::size_t page);
  // What was changed is written behind. An error of that comes from a later open().
  void close(std::size_t page, bool changed);

  double waited_seconds() const { return waited_seconds_; }  // in open(), all together

 private:
  struct Buffer {
    std::span<std::byte> memory;
    std::optional<std::size_t> page;
    bool open = false, changed = false, busy = false;  // busy: the thread reads or writes it
    std::uint64_t touched = 0;
  };

  PagedFile() = default;
  void work();
  Result<std::span<std::byte>> open(std::size_t page, bool read);
  Buffer* find(std::size_t page);
  Buffer* least_recent_clean();
  Result<void> transfer(const Buffer& buffer, bool write);

  std::string folder_;
  Fd fd_;
  std::vector<std::size_t> sizes_;
  std::vector<std::uint64_t> offsets_;
  double waited_seconds_ = 0;

  std::mutex mutex_;  // guards what follows
  std::condition_variable wake_, done_;
  std::vector<Buffer> buffers_;
  std::optional<std::size_t> wanted_;  // open() waits for it to be read
  std::deque<std::size_t> expected_;
  std::optional<Error> error_;
  std::uint64_t clock_ = 0;
  bool stop_ = false;
  std::thread thread_;
};

// Memory for what is written once and read once: on the disk rather than in RAM, in a file without a name. Kind
// environment: no room there.
class ScratchMapping {
 public:
  static Result<ScratchMapping> create(const std::string& folder, std::size_t bytes);
  ScratchMapping(ScratchMapping&& other) noexcept;
  ScratchMapping& operator=(ScratchMapping&&) = delete;
  ~ScratchMapping();

  std::span<std::byte> bytes() const { return bytes_; }
  // The pages go to the disk, until they are read.
  void release();

 private:
  ScratchMapping() = default;
  std::span<std::byte> bytes_;
};

}  // namespace yoke
