// Files and folders: read whole, mapped, written so that nobody ever sees half of one.
//
// Errors are of kind environment and name the path and the system's reason; where the disk is full, also how many bytes
// the file needed. Paths are taken as they are ("~" is the shell's business). All functions may be called from any
// thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"

namespace yoke {

Result<std::string> read_file(const std::string& path);
// The file's bytes in order, in pieces of at most 1 MiB. Unlike a mapping, a bad disk is an error and no signal.
Result<void> read_pieces(const std::string& path, const std::function<void(std::span<const std::byte>)>& use);

// Beside the path, fsync, rename, fsync of the folder: the path holds the old content or the new one, also after a
// power cut.
Result<void> write_file_atomically(const std::string& path, std::string_view content);

// The same in pieces. Nothing is seen at the path before commit(); destroyed without it, nothing is left behind.
class OutputFile {
 public:
  // `needed`: the bytes that will be written, for the message of a full disk.
  static Result<OutputFile> create(const std::string& path, std::uint64_t needed);
  OutputFile(OutputFile&& other) noexcept;
  OutputFile& operator=(OutputFile&&) = delete;
  ~OutputFile();

  Result<void> write(std::span<const std::byte> bytes);
  Result<void> commit();  // once, at the end

 private:
  OutputFile() = default;
  tl::unexpected<Error> error(int code, const char* action) const;
  std::string path_, temporary_;
  std::uint64_t needed_ = 0;
  int fd_ = -1;
};

enum class Access { normal, sequential, random, soon };

// A file's bytes, read-only, for as long as the object lives. The file must not be made shorter meanwhile (replacing it
// by rename is fine).
class MappedFile {
 public:
  static Result<MappedFile> open(const std::string& path, Access access = Access::normal);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return bytes_; }
  std::size_t size() const { return bytes_.size(); }

 private:
  MappedFile() = default;
  std::span<const std::byte> bytes_;
};

bool exists(const std::string& path);
bool is_folder(const std::string& path);
Result<std::uint64_t> file_size(const std::string& path);

Result<void> make_folders(const std::string& path);  // with all parents; an existing one is fine
Result<void> remove_tree(const std::string& path);   // a file or a folder with all in it; an absent one is fine
Result<void> rename_path(const std::string& from, const std::string& to);
Result<void> sync_folder(const std::string& path);  // makes the names in it last through a power cut
// The names in a folder, without "." and "..", sorted by bytes.
Result<std::vector<std::string>> list_folder(const std::string& path);

// The files (not folders) that a pattern names, sorted by bytes, each once; none is not an error. In a part of the path
// `*`, `?` and `[...]` stand for any characters, but a leading dot only matches a dot; the part `**` stands for any
// number of folders, also none, without hidden ones and links. A path of an existing file names it whatever characters
// it has.
Result<std::vector<std::string>> expand_glob(const std::string& pattern);

// A new empty folder below $TMPDIR or /tmp, removed with all in it at the end.
class TemporaryFolder {
 public:
  TemporaryFolder();  // aborts when there can be none: for tests
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  ~TemporaryFolder();

  const std::string& path() const { return path_; }
  std::string operator/(std::string_view name) const;

 private:
  std::string path_;
};

}  // namespace yoke
