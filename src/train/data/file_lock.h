// A lock among processes and threads, held by an open file: whoever dies gives it up.
#pragma once

#include <string>

#include "core/base/result.h"

namespace yoke {

class FileLock {
 public:
  // Makes the file if need be, and waits until nobody else holds its lock. The file stays.
  static Result<FileLock> wait_for(const std::string& path);
  FileLock(FileLock&& other) noexcept;
  FileLock& operator=(FileLock&&) = delete;
  ~FileLock();

 private:
  explicit FileLock(int fd) : fd_(fd) {}
  int fd_ = -1;
};

}  // namespace yoke
