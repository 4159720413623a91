#include "train/checkpoint/tensor_view.h"

namespace yoke {
namespace {

struct Row {
  const char* name;
  std::size_t bytes;
};
// In the order of DType.
constexpr Row rows[] = {{"F64", 8}, {"F32", 4}, {"BF16", 2}, {"F16", 2}, {"I64", 8},
                        {"I32", 4}, {"I16", 2}, {"I8", 1},   {"U8", 1},  {"BOOL", 1}};

}  // namespace

std::size_t byte_size(DType dtype) { return rows[static_cast<std::size_t>(dtype)].bytes; }
const char* name(DType dtype) { return rows[static_cast<std::size_t>(dtype)].name; }

std::optional<DType> dtype_from_name(std::string_view name) {
  for (std::size_t i = 0; i < std::size(rows); ++i)
    if (name == rows[i].name) return static_cast<DType>(i);
  return std::nullopt;
}

std::optional<std::uint64_t> tensor_bytes(DType dtype, std::span<const std::int64_t> shape) {
  std::uint64_t bytes = byte_size(dtype);
  bool overflow = false, empty = false;
  for (std::int64_t size : shape) {
    if (size < 0) return std::nullopt;
    empty |= size == 0;
    overflow |= __builtin_mul_overflow(bytes, static_cast<std::uint64_t>(size), &bytes);
  }
  if (overflow && !empty) return std::nullopt;
  return empty ? 0 : bytes;
}

}  // namespace yoke
