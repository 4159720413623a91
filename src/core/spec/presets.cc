#include "core/spec/presets.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "core/base/text.h"

namespace yoke {
namespace {

Preset read_preset(const nlohmann::json& entry) {
  Preset preset;
  preset.name = entry.at("name");
  preset.source = entry.at("source");
  preset.date = entry.at("date");
  Model& m = preset.shape;
  m.family = entry.at("family") == name(Family::gpt2) ? Family::gpt2 : Family::llama;
  m.layers = entry.at("layers");
  m.hidden = entry.at("hidden");
  m.heads = entry.at("heads");
  m.kv_heads = entry.at("kv_heads");
  m.head_dim = m.hidden / m.heads;
  m.ffn = entry.at("ffn");
  m.vocab = entry.at("vocab");
  m.max_sequence = entry.at("max_sequence");
  m.tied = entry.at("tied");
  m.rope_theta = entry.value("rope_theta", m.rope_theta);
  m.norm_eps = entry.at("norm_eps");
  m.init_std = entry.value("init_std", m.init_std);
  return preset;
}

std::vector<Preset> read_presets() {
  const auto root = nlohmann::json::parse(models_json);
  std::vector<Preset> all;
  for (const nlohmann::json& entry : root.at("models")) all.push_back(read_preset(entry));
  return all;
}

}  // namespace

std::span<const Preset> presets() {
  static const std::vector<Preset> all = read_presets();  // our own data, which presets_test reads: it does not throw
  return all;
}

Result<const Preset*> find_preset(std::string_view wanted) {
  std::vector<std::string> names;
  for (const Preset& preset : presets()) {
    if (preset.name == wanted) return &preset;
    names.push_back(preset.name);
  }
  auto near = did_you_mean(wanted, names);
  return fail(ErrorKind::usage, fmt::format("there is no preset \"{}\"", wanted),
              near ? fmt::format("did you mean \"{}\"?", *near) : fmt::format("presets: {}", join(names, ", ")));
}

}  // namespace yoke
