#include "core/spec/run_spec.h"

#include <fmt/format.h>

#include "core/spec/keys.h"
#include "core/spec/presets.h"

namespace yoke {
namespace {

// A bar would end the cell.
std::string cell(const std::string& text) {
  std::string out;
  for (char c : text) out += c == '|' ? "\\|" : std::string(1, c);
  return out;
}

std::string default_cell(const KeyInfo& key) {
  if (key.required) return "required";
  return key.default_value.empty() ? "" : fmt::format("`{}`", cell(key.default_value));
}

std::string presets_table() {
  std::string out =
      "## Presets\n\n| preset | family | layers | hidden | heads | kv_heads | ffn | vocab | max_sequence | parameters "
      "|\n"
      "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n";
  for (const Preset& preset : presets()) {
    const Model& m = preset.shape;
    out += fmt::format("| `{}` | {} | {} | {} | {} | {} | {} | {} | {} | {} |\n", preset.name, name(m.family), m.layers,
                       m.hidden, m.heads, m.kv_heads, m.ffn, m.vocab, m.max_sequence, parameter_count(m));
  }
  return out + "\nThe source of each is in `data/models.json`.\n";
}

constexpr const char* introduction = R"(# Run spec

A run is one TOML file. This page is made from the table of keys in the program (`run_spec_reference()`).

A value comes from the first of these that has it: `--set section.key=value` on the command line; the environment variable
`YOKE_<SECTION>_<KEY>` (dots become underscores: `train.optimizer.lr` is `YOKE_TRAIN_OPTIMIZER_LR`); the file; the default below.
Only variables of the keys below are read, every other `YOKE_*` is left alone. On the command line and in the
environment a value is read as TOML, and what is not TOML is a plain text: `train.precision=bf16` needs no quotes.

Some choices are replaced as a whole by a stronger source: `model.preset` or `model.path` replaces all of `[model]` that weaker
sources gave, and `parallel.layout = "auto"` the weaker sizes.

An unknown key, a wrong type or a value out of range is an error that names the line.
)";

}  // namespace

std::string run_spec_reference() {
  std::string out = introduction;
  std::string open = "none yet";
  for (const KeyInfo& key : key_table()) {
    auto [section, leaf] = split_key(key.key);
    if (section != open) {
      out += section.empty() ? "\n## Top level\n" : fmt::format("\n## [{}]\n", section);
      out += "\n| key | type | default | meaning |\n| --- | --- | --- | --- |\n";
      open = section;
    }
    const std::string type = key.range.empty() ? key.type : fmt::format("{} {}", key.type, key.range);
    out += fmt::format("| `{}` | {} | {} | {} |\n", leaf, cell(type), default_cell(key), cell(key.meaning));
  }
  return out + "\n" + presets_table();
}

}  // namespace yoke
