#include "train/loop/tensors.h"

#include <ATen/ATen.h>

#include <cstring>

#include "os/paged_file.h"
#include "train/comm/memory.h"

namespace yoke {
namespace {

struct TypePair {
  DType dtype;
  at::ScalarType type;
};
constexpr TypePair types[] = {{DType::f64, at::kDouble}, {DType::f32, at::kFloat}, {DType::bf16, at::kBFloat16},
                              {DType::f16, at::kHalf},   {DType::i64, at::kLong},  {DType::i32, at::kInt},
                              {DType::i16, at::kShort},  {DType::i8, at::kChar},   {DType::u8, at::kByte},
                              {DType::bool_, at::kBool}};

// Without an owner.
NamedTensor named_view(const std::string& name, const at::Tensor& tensor) {
  NamedTensor named;
  named.name = name;
  for (TypePair pair : types)
    if (pair.type == tensor.scalar_type()) named.view.dtype = pair.dtype;
  named.view.shape = tensor.sizes().vec();
  named.view.bytes = {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
  return named;
}

}  // namespace

NamedTensor snapshot(const std::string& name, const at::Tensor& tensor) {
  MemoryScope scope(MemoryPart::checkpoint);
  auto copy = std::make_shared<at::Tensor>(
      tensor.detach().to(at::kCPU, tensor.scalar_type(), /*non_blocking=*/false, /*copy=*/true).contiguous());
  NamedTensor named = named_view(name, *copy);
  named.owner = std::move(copy);
  return named;
}

Result<NamedTensor> snapshot_on_disk(const std::string& name, const at::Tensor& tensor, const std::string& folder) {
  YOKE_TRY(ScratchMapping made, ScratchMapping::create(folder, tensor.nbytes()));
  auto scratch = std::make_shared<ScratchMapping>(std::move(made));
  at::Tensor copy = at::from_blob(scratch->bytes().data(), tensor.sizes(), tensor.options().device(at::kCPU));
  copy.copy_(tensor.detach());
  NamedTensor named = named_view(name, copy);
  scratch->release();
  named.owner = std::move(scratch);
  return named;
}

Result<at::Tensor> tensor_from(const TensorView& view, const std::string& name) {
  for (TypePair pair : types) {
    if (pair.dtype != view.dtype) continue;
    at::Tensor tensor = at::empty(view.shape, at::TensorOptions().dtype(pair.type));
    YOKE_CHECK(tensor.nbytes() == view.bytes.size(), "{}: {} bytes for {}", name, view.bytes.size(), tensor.nbytes());
    if (!view.bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), view.bytes.data(), view.bytes.size());
    return tensor;
  }
  return fail(ErrorKind::failed, fmt::format("{} has a type that cannot be loaded", name));
}

}  // namespace yoke
