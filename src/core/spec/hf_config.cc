#include "core/spec/hf_config.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "core/spec/value.h"

namespace yoke {
namespace {

using nlohmann::json;

std::string plain(const json& value) {
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  return clipped(value.dump(-1, ' ', false, json::error_handler_t::replace));
}

// Reads keys of one config.json and keeps the first error.
class Reader {
 public:
  Reader(const json& root, const std::string& file) : root_(root), file_(file) {}

  bool failed() const { return error_.has_value(); }
  Error error() const { return *error_; }

  void reject(const std::string& what, const std::string& hint) {
    if (!error_) error_ = Error{ErrorKind::usage, fmt::format("{}: {}", file_, what), hint};
  }

  // Null and a missing key are the same, as they are for transformers.
  const json* find(const char* key) const { return find_in(root_, key); }

  static const json* find_in(const json& object, const char* key) {
    auto found = object.find(key);
    return found == object.end() || found->is_null() ? nullptr : &*found;
  }

  std::int64_t size(const char* key, std::optional<std::int64_t> otherwise = std::nullopt) {
    const json* value = find(key);
    if (value == nullptr) {
      if (!otherwise) reject(fmt::format("{} is missing", key), "it is part of the shape: give it");
      return otherwise.value_or(0);
    }
    const bool fits =
        value->is_number_integer() && !(value->is_number_unsigned() && value->get<std::uint64_t>() > INT64_MAX);
    if (!fits) {
      reject(fmt::format("{} is {}, not an integer", key, plain(*value)), "give a whole number");
      return 0;
    }
    return value->get<std::int64_t>();
  }

  double number(const json& object, const char* key, double otherwise) {
    const json* value = find_in(object, key);
    if (value == nullptr) return otherwise;
    if (!value->is_number()) {
      reject(fmt::format("{} is {}, not a number", key, plain(*value)), "give a number");
      return otherwise;
    }
    return value->get<double>();
  }

  bool flag(const char* key, bool otherwise) {
    const json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) {
      reject(fmt::format("{} is {}, not true or false", key, plain(*value)), "give true or false");
      return otherwise;
    }
    return value->get<bool>();
  }

  // A setting of which Yoke has one value only, which is also what a missing key means.
  void only(const json& object, const char* key, const json& value) {
    const json* found = find_in(object, key);
    if (found == nullptr || *found == value) return;
    reject(fmt::format("{} is {}, but Yoke has {} only", key, plain(*found), plain(value)),
           "this model computes something else: choose another one");
  }
  void only(const char* key, const json& value) { only(root_, key, value); }

  // A setting that Yoke does not have in any form.
  void none(const char* key) {
    const json* found = find(key);
    if (found == nullptr) return;
    reject(fmt::format("{} is {}, which Yoke does not have", key, plain(*found)), "choose a model without it");
  }

 private:
  const json& root_;
  const std::string& file_;
  std::optional<Error> error_;
};

// transformers 5 writes rope_parameters, 4 wrote rope_theta beside an optional rope_scaling.
double rope_theta(Reader& reader, const json& root) {
  const double usual = Model().rope_theta;
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    const json* rope = reader.find(key);
    if (rope == nullptr) continue;
    if (!rope->is_object()) {
      reader.reject(fmt::format("{} is {}, not an object", key, plain(*rope)),
                    "write {\"rope_type\": \"default\"}, or leave it out");
      return usual;
    }
    reader.only(*rope, "rope_type", "default");
    reader.only(*rope, "type", "default");
    reader.only(*rope, "partial_rotary_factor", 1.0);
    reader.only(*rope, "factor", 1.0);
  }
  const double outside = reader.number(root, "rope_theta", usual);
  const json* parameters = reader.find("rope_parameters");
  if (parameters == nullptr) return outside;
  const double inside = reader.number(*parameters, "rope_theta", outside);
  if (reader.find("rope_theta") != nullptr && inside != outside) {
    reader.reject(fmt::format("rope_theta is {}, but {} in rope_parameters", outside, inside), "leave one of them out");
  }
  return inside;
}

Model read_llama(Reader& reader, const json& root) {
  Model m;
  m.family = Family::llama;
  m.layers = reader.size("num_hidden_layers");
  m.hidden = reader.size("hidden_size");
  m.heads = reader.size("num_attention_heads");
  m.kv_heads = reader.size("num_key_value_heads", m.heads);
  m.head_dim = reader.size("head_dim", m.heads > 0 ? m.hidden / m.heads : 0);
  m.ffn = reader.size("intermediate_size");
  m.vocab = reader.size("vocab_size");
  m.max_sequence = reader.size("max_position_embeddings", 2048);
  m.tied = reader.flag("tie_word_embeddings", false);
  m.rope_theta = rope_theta(reader, root);
  m.norm_eps = reader.number(root, "rms_norm_eps", 1e-6);
  m.init_std = reader.number(root, "initializer_range", 0.02);
  reader.only("hidden_act", "silu");
  reader.only("attention_bias", false);
  reader.only("mlp_bias", false);
  reader.only("partial_rotary_factor", 1.0);
  return m;
}

Model read_gpt2(Reader& reader, const json& root) {
  Model m;
  m.family = Family::gpt2;
  m.layers = reader.size("n_layer");
  m.hidden = reader.size("n_embd");
  m.heads = reader.size("n_head");
  m.kv_heads = m.heads;
  m.head_dim = m.heads > 0 ? m.hidden / m.heads : 0;
  m.ffn = reader.size("n_inner", m.hidden > 0 && m.hidden <= 1 << 24 ? 4 * m.hidden : 0);
  m.vocab = reader.size("vocab_size");
  m.max_sequence = reader.size("n_positions", 1024);
  m.tied = reader.flag("tie_word_embeddings", true);
  m.norm_eps = reader.number(root, "layer_norm_epsilon", 1e-5);
  m.init_std = reader.number(root, "initializer_range", 0.02);
  reader.only("activation_function", "gelu_new");
  reader.only("scale_attn_weights", true);
  reader.only("scale_attn_by_inverse_layer_idx", false);
  reader.only("add_cross_attention", false);
  return m;
}

// check() speaks of our names; the file has transformers'.
std::string renamed(const std::string& field, Family family) {
  static constexpr const char* names[][3] = {{"layers", "num_hidden_layers", "n_layer"},
                                             {"hidden", "hidden_size", "n_embd"},
                                             {"heads", "num_attention_heads", "n_head"},
                                             {"kv_heads", "num_key_value_heads", "n_head"},
                                             {"ffn", "intermediate_size", "n_inner"},
                                             {"vocab", "vocab_size", "vocab_size"},
                                             {"max_sequence", "max_position_embeddings", "n_positions"},
                                             {"norm_eps", "rms_norm_eps", "layer_norm_epsilon"},
                                             {"init_std", "initializer_range", "initializer_range"}};
  for (const auto& row : names)
    if (field == row[0]) return row[family == Family::llama ? 1 : 2];
  return field;
}

Result<Model> read_config(const json& root, const std::string& file) {
  Reader reader(root, file);
  if (!root.is_object()) {
    reader.reject("not a JSON object", "a config.json as transformers writes it is needed");
    return tl::unexpected(reader.error());
  }
  const json* type = reader.find("model_type");
  const bool llama = type != nullptr && *type == "llama", gpt2 = type != nullptr && *type == "gpt2";
  if (!llama && !gpt2) {
    reader.reject(type == nullptr ? "model_type is missing" : fmt::format("model_type is {}", plain(*type)),
                  "Yoke has the model types \"llama\" and \"gpt2\"");
    return tl::unexpected(reader.error());
  }
  const Model model = llama ? read_llama(reader, root) : read_gpt2(reader, root);
  reader.none("quantization_config");
  if (!reader.failed()) {
    if (auto checked = check(model); !checked) {
      const auto& [kind, what, hint] = checked.error();
      const std::size_t space = what.find(' ');
      reader.reject(renamed(what.substr(0, space), model.family) + what.substr(space), hint);
    }
  }
  if (reader.failed()) return tl::unexpected(reader.error());
  return model;
}

}  // namespace

Result<Model> model_from_hf_config(std::string_view text, const std::string& file) {
  try {
    return read_config(json::parse(text), file);
  } catch (const json::parse_error& error) {
    return fail(ErrorKind::usage, fmt::format("{}: not JSON at byte {}", file, error.byte),
                "a config.json as transformers writes it is needed");
  } catch (const json::out_of_range&) {
    return fail(ErrorKind::usage, fmt::format("{}: a number is too large to be read", file),
                "a config.json as transformers writes it is needed");
  }
}

std::string hf_config_from_model(const Model& m, const std::string& torch_dtype) {
  // No token is special to a fresh model; transformers' own defaults would stop generation at some byte.
  json root = {{"bos_token_id", nullptr},      {"eos_token_id", nullptr},       {"initializer_range", m.init_std},
               {"model_type", name(m.family)}, {"tie_word_embeddings", m.tied}, {"torch_dtype", torch_dtype},
               {"vocab_size", m.vocab}};
  if (m.family == Family::llama) {
    root.update({{"architectures", json::array({"LlamaForCausalLM"})},
                 {"attention_bias", false},
                 {"head_dim", m.head_dim},
                 {"hidden_act", "silu"},
                 {"hidden_size", m.hidden},
                 {"intermediate_size", m.ffn},
                 {"max_position_embeddings", m.max_sequence},
                 {"mlp_bias", false},
                 {"num_attention_heads", m.heads},
                 {"num_hidden_layers", m.layers},
                 {"num_key_value_heads", m.kv_heads},
                 {"rms_norm_eps", m.norm_eps},
                 {"rope_theta", m.rope_theta}});  // read by transformers 4 and 5
  } else {
    root.update({{"activation_function", "gelu_new"},
                 {"architectures", json::array({"GPT2LMHeadModel"})},
                 {"attn_pdrop", 0.0},
                 {"embd_pdrop", 0.0},
                 {"layer_norm_epsilon", m.norm_eps},
                 {"n_embd", m.hidden},
                 {"n_head", m.heads},
                 {"n_inner", m.ffn},
                 {"n_layer", m.layers},
                 {"n_positions", m.max_sequence},
                 {"resid_pdrop", 0.0}});
  }
  return root.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
}

}  // namespace yoke
