// Safetensors files: Hugging Face's format for named tensors, written in a stream and read through a mapping.
//
//   8 bytes   length N of the header, little-endian
//   N bytes   JSON, padded with spaces to a multiple of 8:
//             {"__metadata__": {text: text}, name: {"dtype": "F32", "shape": [2, 3], "data_offsets": [begin, end]},
//             ...}
//   the rest  the tensors without gaps or overlaps; offsets count from here
//
// Errors are of kind environment for files that cannot be opened or written, failed for corrupt ones and for tensors
// that cannot be stored; they name the file, the tensor and the numbers.
#pragma once

#include <map>

#include "core/base/result.h"
#include "os/file.h"
#include "train/checkpoint/tensor_view.h"

namespace yoke {

struct WrittenFile {
  std::uint64_t bytes = 0;
  std::uint64_t xxh3 = 0;  // XXH3-64 of the file's bytes
};

// Writes beside and renames. The larger element types come first, so that every tensor is aligned to its own type.
// transformers wants the metadata {"format": "pt"}.
Result<WrittenFile> write_safetensors(const std::string& path, std::span<const NamedTensor> tensors,
                                      const std::map<std::string, std::string>& metadata);

// A whole file's bytes to its tensors, which point into them. Everything is checked before anything is used; `file` is
// its name in errors.
Result<std::map<std::string, TensorView>> parse_safetensors(std::span<const std::byte> bytes, const std::string& file);

class SafetensorsFile {
 public:
  static Result<SafetensorsFile> open(const std::string& path);

  const std::string& path() const { return path_; }
  std::vector<std::string> names() const;                 // sorted
  const TensorView* find(const std::string& name) const;  // null if there is none; lives as long as this object

 private:
  SafetensorsFile(std::string path, MappedFile file, std::map<std::string, TensorView> tensors)
      : path_(std::move(path)), file_(std::move(file)), tensors_(std::move(tensors)) {}
  std::string path_;
  MappedFile file_;
  std::map<std::string, TensorView> tensors_;
};

}  // namespace yoke
