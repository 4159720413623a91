#include "train/data/file_lock.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

namespace yoke {

Result<FileLock> FileLock::wait_for(const std::string& path) {
  FileLock lock(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  int done = -1;
  if (lock.fd_ >= 0) {
    do done = ::flock(lock.fd_, LOCK_EX);
    while (done != 0 && errno == EINTR);
  }
  if (done != 0)
    return fail(ErrorKind::environment, fmt::format("cannot lock {}: {}", path, std::generic_category().message(errno)),
                "choose a folder that can be written to, on a file system with locks");
  return lock;
}

FileLock::FileLock(FileLock&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

FileLock::~FileLock() {
  if (fd_ >= 0) ::close(fd_);
}

}  // namespace yoke
