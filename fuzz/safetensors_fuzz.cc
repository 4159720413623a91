// Any bytes as a safetensors file: an error, or tensors that lie within them, each as large as its type and shape say.
#include <cstdlib>

#include "train/checkpoint/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  auto bytes = std::as_bytes(std::span(data, size));
  auto tensors = yoke::parse_safetensors(bytes, "input");
  if (!tensors) return 0;
  std::size_t all = 0;
  for (const auto& [name, view] : *tensors) {
    all += view.bytes.size();
    if (view.bytes.size() != yoke::tensor_bytes(view.dtype, view.shape)) std::abort();
    if (!view.bytes.empty() && (view.bytes.data() < bytes.data() || &view.bytes.back() > &bytes.back())) std::abort();
  }
  if (all + 8 > size) std::abort();  // an overlap
  return 0;
}
