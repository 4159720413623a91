#include "os/file.h"

#include <dirent.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>
#include <utility>

#include "core/base/text.h"
#include "os/fd.h"

namespace yoke {
namespace {

std::string reason(int code) { return std::generic_category().message(code); }

tl::unexpected<Error> os_error(int code, const char* action, const std::string& path) {
  std::string hint;
  if (code == ENOENT) hint = "check the path";
  if (code == EACCES || code == EPERM) hint = "check who may use the file and the folders above it";
  if (code == EROFS) hint = "choose a folder that can be written to";
  return fail(ErrorKind::environment, fmt::format("cannot {} {}: {}", action, path, reason(code)), hint);
}

std::string parent_of(const std::string& path) {
  std::string parent = std::filesystem::path(path).parent_path();
  return parent.empty() ? "." : parent;
}

}  // namespace

Result<std::string> read_file(const std::string& path) {
  Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (file.get() < 0 || ::fstat(file.get(), &info) != 0) return os_error(errno, "read", path);
  std::string text;
  // One byte more than the size, so that the end is seen without growing; files of /proc say 0 and grow.
  std::size_t room = info.st_size > 0 ? static_cast<std::size_t>(info.st_size) + 1 : 4096;
  while (true) {
    std::size_t have = text.size();
    text.resize(have + room);
    ssize_t got;
    do got = ::read(file.get(), text.data() + have, room);
    while (got < 0 && errno == EINTR);
    if (got < 0) return os_error(errno, "read", path);
    text.resize(have + static_cast<std::size_t>(got));
    if (got == 0) return text;
    room = std::max<std::size_t>(room - static_cast<std::size_t>(got), 4096);
  }
}

Result<void> read_pieces(const std::string& path, const std::function<void(std::span<const std::byte>)>& use) {
  Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (file.get() < 0) return os_error(errno, "read", path);
  std::vector<std::byte> piece(std::size_t{1} << 20);
  while (true) {
    ssize_t got = ::read(file.get(), piece.data(), piece.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return os_error(errno, "read", path);
    if (got == 0) return {};
    use(std::span(piece).first(static_cast<std::size_t>(got)));
  }
}

Result<void> write_file_atomically(const std::string& path, std::string_view content) {
  YOKE_TRY(OutputFile file, OutputFile::create(path, content.size()));
  YOKE_TRY_VOID(file.write(std::as_bytes(std::span(content))));
  return file.commit();
}

Result<OutputFile> OutputFile::create(const std::string& path, std::uint64_t needed) {
  static std::atomic<unsigned> counter = 0;
  OutputFile file;
  file.path_ = path;
  file.needed_ = needed;
  // Threads differ by the counter, processes by their id; O_EXCL finds the hosts that share a file system and an id.
  for (int attempt = 0; attempt < 100; ++attempt) {
    std::string temporary = fmt::format("{}.{}-{}.tmp", path, ::getpid(), counter++);
    file.fd_ = ::open(temporary.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file.fd_ >= 0) {
      file.temporary_ = temporary;
      return file;
    }
    if (errno != EEXIST) break;
  }
  return file.error(errno, "create");
}

OutputFile::OutputFile(OutputFile&& other) noexcept
    : path_(std::move(other.path_)),
      temporary_(std::exchange(other.temporary_, {})),
      needed_(other.needed_),
      fd_(std::exchange(other.fd_, -1)) {}

OutputFile::~OutputFile() {
  if (fd_ >= 0) ::close(fd_);
  if (!temporary_.empty()) ::unlink(temporary_.c_str());
}

tl::unexpected<Error> OutputFile::error(int code, const char* action) const {
  if (code != ENOSPC && code != EDQUOT && code != EFBIG) return os_error(code, action, path_);
  std::string free;
  struct statvfs disk {};
  if (::statvfs(parent_of(path_).c_str(), &disk) == 0)
    free = fmt::format(", {} bytes are free", std::uint64_t{disk.f_bavail} * disk.f_frsize);
  return fail(ErrorKind::environment,
              fmt::format("cannot {} {}: {} (the file needs {} bytes{})", action, path_, reason(code), needed_, free),
              "free space there or choose another folder; what was there before is untouched");
}

Result<void> OutputFile::write(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    ssize_t done = ::write(fd_, bytes.data(), bytes.size());
    if (done < 0 && errno == EINTR) continue;
    if (done < 0) return error(errno, "write");
    bytes = bytes.subspan(static_cast<std::size_t>(done));
  }
  return {};
}

Result<void> OutputFile::commit() {
  YOKE_CHECK(fd_ >= 0, "commit of {} twice", path_);
  if (::fsync(fd_) != 0) return error(errno, "write");
  // Network file systems report a full disk only here.
  if (::close(std::exchange(fd_, -1)) != 0) return error(errno, "write");
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) return error(errno, "replace");
  temporary_.clear();
  return sync_folder(parent_of(path_));
}

Result<MappedFile> MappedFile::open(const std::string& path, Access access) {
  Fd file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  struct stat info {};
  if (file.get() < 0 || ::fstat(file.get(), &info) != 0) return os_error(errno, "open", path);
  if (!S_ISREG(info.st_mode)) return os_error(S_ISDIR(info.st_mode) ? EISDIR : EINVAL, "map", path);
  MappedFile mapped;
  auto size = static_cast<std::size_t>(info.st_size);
  if (size == 0) return mapped;
  void* start = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, file.get(), 0);
  if (start == MAP_FAILED) return os_error(errno, "map", path);
  mapped.bytes_ = {static_cast<const std::byte*>(start), size};
  static constexpr int advice[] = {MADV_NORMAL, MADV_SEQUENTIAL, MADV_RANDOM, MADV_WILLNEED};
  ::madvise(start, size, advice[static_cast<int>(access)]);  // advice: a kernel that does not take it loses nothing
  return mapped;
}

MappedFile::MappedFile(MappedFile&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedFile::~MappedFile() {
  if (!bytes_.empty()) ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size());
}

bool exists(const std::string& path) { return ::access(path.c_str(), F_OK) == 0; }

bool is_folder(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISDIR(info.st_mode);
}

Result<std::uint64_t> file_size(const std::string& path) {
  struct stat info {};
  if (::stat(path.c_str(), &info) != 0) return os_error(errno, "read", path);
  return static_cast<std::uint64_t>(info.st_size);
}

Result<void> make_folders(const std::string& path) {
  std::error_code code;
  std::filesystem::create_directories(path, code);
  if (code) return os_error(code.value(), "make folder", path);
  return {};
}

Result<void> remove_tree(const std::string& path) {
  std::error_code code;
  std::filesystem::remove_all(path, code);
  if (code) return os_error(code.value(), "remove", path);
  return {};
}

Result<void> rename_path(const std::string& from, const std::string& to) {
  if (::rename(from.c_str(), to.c_str()) != 0) return os_error(errno, "rename", from + " to " + to);
  return {};
}

Result<void> sync_folder(const std::string& path) {
  Fd folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (folder.get() < 0) return os_error(errno, "open", path);
  // EINVAL: a file system that has no such thing.
  if (::fsync(folder.get()) != 0 && errno != EINVAL) return os_error(errno, "sync", path);
  return {};
}

Result<std::vector<std::string>> list_folder(const std::string& path) {
  DIR* folder = ::opendir(path.c_str());
  if (folder == nullptr) return os_error(errno, "list", path);
  std::vector<std::string> names;
  errno = 0;
  while (const dirent* entry = ::readdir(folder)) {
    std::string name = entry->d_name;
    if (name != "." && name != "..") names.push_back(std::move(name));
  }
  int code = errno;
  ::closedir(folder);
  if (code != 0) return os_error(code, "list", path);
  std::sort(names.begin(), names.end());
  return names;
}

namespace {

bool is_file(const std::string& path) {
  struct stat info {};
  return ::stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode);
}

bool is_link(const std::string& path) {
  struct stat info {};
  return ::lstat(path.c_str(), &info) == 0 && S_ISLNK(info.st_mode);
}

// Adds the files below `folder` (a prefix that ends in "/", or "") that `parts` name.
Result<void> expand(const std::string& folder, std::span<const std::string> parts, std::vector<std::string>& found) {
  const std::string& part = parts.front();
  bool last = parts.size() == 1;
  bool deep = part == "**";
  if (deep && !last) YOKE_TRY_VOID(expand(folder, parts.subspan(1), found));
  if (part.find_first_of("*?[") == std::string::npos) {
    std::string path = folder + part;
    if (last && is_file(path)) found.push_back(path);
    if (last || !is_folder(path)) return {};
    return expand(path + "/", parts.subspan(1), found);
  }
  YOKE_TRY(auto names, list_folder(folder.empty() ? "." : folder));
  for (const std::string& name : names) {
    if (::fnmatch(part.c_str(), name.c_str(), FNM_PERIOD) != 0) continue;
    std::string path = folder + name;
    if (last && is_file(path)) found.push_back(path);
    if (!is_folder(path) || (deep && is_link(path)) || (last && !deep)) continue;
    YOKE_TRY_VOID(expand(path + "/", deep ? parts : parts.subspan(1), found));
  }
  return {};
}

}  // namespace

Result<std::vector<std::string>> expand_glob(const std::string& pattern) {
  if (is_file(pattern)) return std::vector<std::string>{pattern};
  std::vector<std::string> parts = split(pattern, '/');
  bool absolute = pattern.starts_with('/');
  std::erase(parts, "");
  auto both_deep = [](const std::string& a, const std::string& b) { return a == "**" && b == "**"; };
  parts.erase(std::unique(parts.begin(), parts.end(), both_deep), parts.end());  // the same files, found once
  std::vector<std::string> found;
  if (parts.empty() || pattern.ends_with('/')) return found;  // names no file
  YOKE_TRY_VOID(expand(absolute ? "/" : "", parts, found));
  std::sort(found.begin(), found.end());
  found.erase(std::unique(found.begin(), found.end()), found.end());
  return found;
}

TemporaryFolder::TemporaryFolder() {
  const char* root = std::getenv("TMPDIR");
  path_ = std::string(root != nullptr && *root != '\0' ? root : "/tmp") + "/yoke-XXXXXX";
  YOKE_CHECK(::mkdtemp(path_.data()) != nullptr, "no temporary folder {}: {}", path_, reason(errno));
}

TemporaryFolder::~TemporaryFolder() { (void)remove_tree(path_); }

std::string TemporaryFolder::operator/(std::string_view name) const { return fmt::format("{}/{}", path_, name); }

}  // namespace yoke
