#include "os/paged_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <system_error>
#include <utility>

#include "core/base/text.h"
#include "os/file.h"

namespace yoke {
namespace {

tl::unexpected<Error> disk_error(const std::string& folder, const char* action, int code) {
  return fail(ErrorKind::environment, fmt::format("{}: cannot {} offloaded state: {}", folder, action, strerror(code)),
              "offload.path must be a folder on a healthy disk that may be written");
}

// A file without a name, with room for so many bytes.
Result<Fd> nameless_file(const std::string& folder, std::uint64_t bytes) {
  YOKE_TRY_VOID(make_folders(folder));
  Fd fd(::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (!fd && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {  // not on every file system
    std::string path = folder + "/.offload-XXXXXX";
    fd = Fd(::mkostemp(path.data(), O_CLOEXEC));
    if (fd) ::unlink(path.c_str());
  }
  if (!fd) return disk_error(folder, "make a file for", errno);
  if (bytes == 0) return fd;
  if (int code = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(bytes)); code != 0) {
    if (code != ENOSPC) return disk_error(folder, "take room for", code);
    struct statvfs disk {};
    double free = ::statvfs(folder.c_str(), &disk) == 0
                      ? static_cast<double>(disk.f_bavail) * static_cast<double>(disk.f_frsize)
                      : 0;
    return fail(ErrorKind::environment,
                fmt::format("{}: offloaded state needs {}, and {} are free there", folder,
                            format_bytes(static_cast<double>(bytes)), format_bytes(free)),
                "choose another folder with offload.path, or make room");
  }
  return fd;
}

}  // namespace

Result<std::unique_ptr<PagedFile>> PagedFile::create(const std::string& folder, const std::vector<std::size_t>& pages,
                                                     std::vector<std::span<std::byte>> memory) {
  YOKE_CHECK(memory.size() >= 2, "{} buffers", memory.size());
  std::unique_ptr<PagedFile> file(new PagedFile);
  file->folder_ = folder;
  file->sizes_ = pages;
  std::uint64_t end = 0;
  for (std::size_t bytes : pages) {
    file->offsets_.push_back(end);
    end += bytes;
  }
  for (std::span<std::byte> buffer : memory) file->buffers_.push_back({buffer, std::nullopt});
  YOKE_TRY(file->fd_, nameless_file(folder, end));
  try {
    file->thread_ = std::thread([raw = file.get()] { raw->work(); });
  } catch (const std::system_error& error) {
    return fail(ErrorKind::environment, fmt::format("cannot start the thread of offloaded state: {}", error.what()),
                "raise the limit of processes and threads (ulimit -u)");
  }
  return file;
}

PagedFile::~PagedFile() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  wake_.notify_one();
  if (thread_.joinable()) thread_.join();
}

void PagedFile::expect(std::size_t page) {
  {
    std::lock_guard lock(mutex_);
    if (Buffer* there = find(page)) {
      there->touched = ++clock_;
      return;
    }
    expected_.push_back(page);
  }
  wake_.notify_one();
}

Result<std::span<std::byte>> PagedFile::open(std::size_t page) { return open(page, /*read=*/true); }
Result<std::span<std::byte>> PagedFile::open_new(std::size_t page) { return open(page, /*read=*/false); }

Result<std::span<std::byte>> PagedFile::open(std::size_t page, bool read) {
  auto began = std::chrono::steady_clock::now();
  std::unique_lock lock(mutex_);
  std::erase(expected_, page);
  Buffer* there = nullptr;
  // A changed page may be opened again before it is written, but not while.
  auto ready = [&] {
    there = find(page);
    if (there == nullptr && !read && (there = least_recent_clean()) != nullptr) there->page = page;
    return error_ || (there != nullptr && !there->busy);
  };
  if (!ready()) {
    YOKE_CHECK(!std::all_of(buffers_.begin(), buffers_.end(), [](const Buffer& b) { return b.open; }),
               "all {} pages in memory are open", buffers_.size());
    if (read) wanted_ = page;
    wake_.notify_one();
    done_.wait(lock, ready);
    wanted_.reset();
  }
  waited_seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  if (error_) return tl::unexpected(*error_);
  there->open = true;
  there->touched = ++clock_;
  return there->memory.first(sizes_[page]);
}

void PagedFile::close(std::size_t page, bool changed) {
  {
    std::lock_guard lock(mutex_);
    Buffer* buffer = find(page);
    YOKE_CHECK(buffer != nullptr && buffer->open, "page {} is not open", page);
    buffer->open = false;
    buffer->changed |= changed;
    buffer->touched = ++clock_;
  }
  wake_.notify_one();
}

PagedFile::Buffer* PagedFile::find(std::size_t page) {
  auto found = std::find_if(buffers_.begin(), buffers_.end(), [&](const Buffer& b) { return b.page == page; });
  return found == buffers_.end() ? nullptr : &*found;
}

PagedFile::Buffer* PagedFile::least_recent_clean() {
  Buffer* best = nullptr;
  for (Buffer& b : buffers_)
    if (!b.open && !b.changed && !b.busy && (best == nullptr || b.touched < best->touched)) best = &b;
  return best;
}

void PagedFile::work() {
  std::unique_lock lock(mutex_);
  Buffer* next = nullptr;
  bool write = false;
  // What to do now: what somebody waits for, then what makes room, then what will be needed.
  auto choose = [&] {
    next = nullptr;
    write = false;
    auto read = [&](std::size_t page) {
      if (find(page) != nullptr) return;  // there already, or on its way
      next = least_recent_clean();
      if (next != nullptr) next->page = page;
    };
    if (wanted_) read(*wanted_);
    for (Buffer& b : buffers_)
      if (next == nullptr && b.changed && !b.open) next = &b, write = true;
    while (next == nullptr && !expected_.empty()) {
      std::size_t page = expected_.front();
      expected_.pop_front();
      read(page);
    }
    return next != nullptr;
  };
  while (true) {
    wake_.wait(lock, [&] { return stop_ || (!error_ && choose()); });
    if (stop_) return;
    next->busy = true;
    lock.unlock();
    auto result = transfer(*next, write);
    lock.lock();
    next->busy = false;
    next->touched = ++clock_;
    if (write) next->changed = false;
    if (!result) error_ = result.error();
    done_.notify_one();
  }
}

Result<void> PagedFile::transfer(const Buffer& buffer, bool write) {
  std::size_t done = 0, size = sizes_[*buffer.page];
  while (done < size) {
    auto at = static_cast<off_t>(offsets_[*buffer.page] + done);
    ssize_t moved = write ? ::pwrite(fd_.get(), buffer.memory.data() + done, size - done, at)
                          : ::pread(fd_.get(), buffer.memory.data() + done, size - done, at);
    if (moved < 0 && errno == EINTR) continue;
    if (moved <= 0) return disk_error(folder_, write ? "write" : "read", moved < 0 ? errno : EIO);
    done += static_cast<std::size_t>(moved);
  }
  return {};
}

Result<ScratchMapping> ScratchMapping::create(const std::string& folder, std::size_t bytes) {
  YOKE_TRY(Fd fd, nameless_file(folder, bytes));
  ScratchMapping scratch;
  if (bytes == 0) return scratch;
  void* place = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (place == MAP_FAILED) return disk_error(folder, "map", errno);
  scratch.bytes_ = {static_cast<std::byte*>(place), bytes};
  return scratch;
}

ScratchMapping::ScratchMapping(ScratchMapping&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

ScratchMapping::~ScratchMapping() {
  if (!bytes_.empty()) ::munmap(bytes_.data(), bytes_.size());
}

void ScratchMapping::release() {
  // Of a shared mapping this only forgets where the pages are: the file keeps what was written.
  if (!bytes_.empty()) ::madvise(bytes_.data(), bytes_.size(), MADV_DONTNEED);
}

}  // namespace yoke
