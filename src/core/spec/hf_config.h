// Hugging Face's config.json, both ways, for the families of model.h (model_type llama and gpt2).
#pragma once

#include <string>
#include <string_view>

#include "core/base/result.h"
#include "core/spec/model.h"

namespace yoke {

// `file` names the source in errors (kind usage). A setting that would change the mathematics and that Yoke does not
// have (attention_bias, rope_scaling, another activation, ...) is an error that names it, never ignored.
// Dropout rates are ignored: they are a choice of one training, not part of the model.
Result<Model> model_from_hf_config(std::string_view json, const std::string& file);

// What transformers' AutoConfig reads back as the same model. torch_dtype: "float32", "bfloat16", ...
std::string hf_config_from_model(const Model& model, const std::string& torch_dtype);

}  // namespace yoke
