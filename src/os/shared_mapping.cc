#include "os/shared_mapping.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <climits>
#include <cmath>
#include <cstring>
#include <ctime>
#include <utility>

#include "core/base/text.h"
#include "os/file.h"

namespace yoke {
namespace {

Error cannot(const std::string& what, const char* hint = "") {
  return {ErrorKind::environment, fmt::format("{}: {}", what, std::strerror(errno)), hint};
}

Result<std::byte*> map(int fd, std::size_t bytes) {
  void* memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (memory == MAP_FAILED)
    return tl::unexpected(
        cannot(fmt::format("cannot map {} of shared memory", format_bytes(static_cast<double>(bytes))),
               "is there a limit on this process's memory (ulimit -v)?"));
  return static_cast<std::byte*>(memory);
}

}  // namespace

SharedMapping::SharedMapping(SharedMapping&& other) noexcept
    : fd_(std::move(other.fd_)), data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

SharedMapping& SharedMapping::operator=(SharedMapping&& other) noexcept {
  std::swap(fd_, other.fd_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

SharedMapping::~SharedMapping() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

Result<SharedMapping> SharedMapping::create(std::size_t bytes) {
  SharedMapping mapping;
  mapping.fd_ = Fd(memfd_create("yoke", MFD_CLOEXEC));
  if (!mapping.fd_) return tl::unexpected(cannot("cannot make shared memory"));
  if (ftruncate(mapping.fd_.get(), static_cast<off_t>(bytes)) != 0)
    return tl::unexpected(
        cannot(fmt::format("cannot make {} of shared memory", format_bytes(static_cast<double>(bytes)))));
  YOKE_TRY(mapping.data_, map(mapping.fd_.get(), bytes));
  mapping.bytes_ = bytes;
  return mapping;
}

Result<SharedMapping> SharedMapping::open(pid_t owner, int fd, std::size_t bytes) {
  std::string path = fmt::format("/proc/{}/fd/{}", owner, fd);
  Fd opened(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (!opened) return tl::unexpected(cannot(fmt::format("cannot open the shared memory of process {}", owner)));
  struct stat status {};
  if (fstat(opened.get(), &status) != 0 || static_cast<std::size_t>(status.st_size) < bytes)
    return fail(ErrorKind::environment, fmt::format("the shared memory of process {} is not what it was", owner));
  SharedMapping mapping;
  YOKE_TRY(mapping.data_, map(opened.get(), bytes));
  mapping.bytes_ = bytes;
  return mapping;
}

std::string host_identity() {
  std::string boot = read_file("/proc/sys/kernel/random/boot_id").value_or("unknown");
  char space[128] = {};
  ssize_t length = readlink("/proc/self/ns/pid", space, sizeof space - 1);
  return fmt::format("{} {} {}", trim(boot), length > 0 ? space : "unknown", getuid());
}

void wait_at_bell(std::atomic<std::uint32_t>& bell, std::uint32_t seen, double seconds) {
  double whole = std::floor(seconds);
  timespec limit{static_cast<time_t>(whole), static_cast<long>((seconds - whole) * 1e9)};
  syscall(SYS_futex, &bell, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void ring(std::atomic<std::uint32_t>& bell) {
  bell.fetch_add(1);
  syscall(SYS_futex, &bell, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

ProcessWatch::ProcessWatch(pid_t pid) : fd_(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))) {}

bool ProcessWatch::ended() const {
  if (!fd_) return false;  // not known: an old kernel, or no more descriptors
  pollfd entry{fd_.get(), POLLIN, 0};
  return poll(&entry, 1, 0) > 0;
}

}  // namespace yoke
