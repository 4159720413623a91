// Hugging Face's config.json. What is accepted must write and read back the same.
#include <string_view>

#include "core/spec/hf_config.h"

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  auto model = yoke::model_from_hf_config(std::string_view(reinterpret_cast<const char*>(data), size), "config.json");
  if (!model) {
    YOKE_CHECK(!model.error().hint.empty(), "no hint: {}", model.error().what);
    return 0;
  }
  auto again = yoke::model_from_hf_config(yoke::hf_config_from_model(*model, "float32"), "config.json");
  YOKE_CHECK(again.has_value(), "{}", again.error().what);
  YOKE_CHECK(*again == *model, "not the same");
  return 0;
}
