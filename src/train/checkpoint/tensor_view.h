// A tensor as this room sees it: a type, a shape, and bytes in row-major order (0001: no libtorch here).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace yoke {

enum class DType { f64, f32, bf16, f16, i64, i32, i16, i8, u8, bool_ };

std::size_t byte_size(DType dtype);
const char* name(DType dtype);  // as safetensors spells it: "F64", "F32", "BF16", "F16", "I64", ..., "BOOL"
std::optional<DType> dtype_from_name(std::string_view name);

struct TensorView {
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;   // empty: one element
  std::span<const std::byte> bytes;  // somebody else's; may lie at any address, so copy before reading as numbers
};

// The bytes that a tensor of this type and shape has; nothing if a size is negative or the product is beyond 64 bits.
std::optional<std::uint64_t> tensor_bytes(DType dtype, std::span<const std::int64_t> shape);

struct NamedTensor {
  std::string name;
  TensorView view;
  std::shared_ptr<const void> owner;  // keeps view.bytes alive; null when the caller does
};

}  // namespace yoke
