#include "core/spec/run_spec.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "core/base/text.h"
#include "core/spec/keys.h"
#include "core/spec/presets.h"
#include "core/spec/run_spec_check.h"
#include "core/spec/toml_values.h"

namespace yoke {
namespace {

enum class Strength { file, environment, set };

struct Given {
  Value value;
  std::string where;
  Strength strength;
};
using AllGiven = std::map<std::string, Given>;  // by key; the strongest value of each

bool is_axis(std::string_view key) {
  return key == "parallel.data" || key == "parallel.tensor" || key == "parallel.pipeline" ||
         key == "parallel.context" || key == "parallel.expert";
}

// Preset and path say where the shape is from; the other keys of [model] are the shape.
bool is_way_to_model(std::string_view key) { return key == "model.preset" || key == "model.path"; }

// A choice made anew at a stronger source takes the place of the whole weaker choice.
void drop_replaced(AllGiven& all, const std::string& key, const Given& given) {
  const bool model = is_way_to_model(key);
  const bool layout = key == "parallel.layout" && given.value == Value(std::string("auto"));
  if (!model && !layout) return;
  std::erase_if(all, [&](const auto& entry) {
    return entry.second.strength < given.strength && (model ? entry.first.starts_with("model.") : is_axis(entry.first));
  });
}

Result<void> add(AllGiven& all, const std::string& key, Given given) {
  if (find_row(key) == nullptr) return tl::unexpected(unknown_key(key, given.where));
  drop_replaced(all, key, given);
  all.insert_or_assign(key, std::move(given));
  return {};
}

// A key that takes a text takes the typed characters: name = 007 is no number.
Value typed_value(const std::string& key, const std::string& text) {
  Value value = read_toml_value(text);
  const Row* row = find_row(key);
  const bool text_key = row != nullptr && (row->info.type == "string" || !row->choices.empty());
  return text_key && !std::holds_alternative<std::string>(value) ? Value(text) : value;
}

Result<void> add_text(AllGiven& all, const std::string& key, std::string_view text, Given given) {
  if (!is_utf8(text)) {
    return fail(ErrorKind::usage, fmt::format("{}: the value of {} is not UTF-8", given.where, key),
                "rename the file, or change the encoding");
  }
  given.value = typed_value(key, std::string(trim(text)));
  return add(all, key, std::move(given));
}

Result<void> add_sets(AllGiven& all, const std::vector<std::string>& sets) {
  for (const std::string& set : sets) {
    const std::size_t equals = set.find('=');
    if (equals == std::string::npos) {
      return fail(ErrorKind::usage, fmt::format("--set: {} has no =", clipped(set)),
                  "write --set key=value, such as --set train.steps=50");
    }
    const std::string key(trim(std::string_view(set).substr(0, equals)));
    YOKE_TRY_VOID(add_text(all, key, std::string_view(set).substr(equals + 1), {{}, "--set", Strength::set}));
  }
  return {};
}

Result<AllGiven> gather(const SpecSources& sources) {
  AllGiven all;
  YOKE_TRY(auto from_file, read_toml(sources.text, sources.file));
  for (KeyValue& entry : from_file) {
    YOKE_TRY_VOID(
        add(all, entry.key, {std::move(entry.value), fmt::format("{}:{}", sources.file, entry.line), Strength::file}));
  }
  const std::map<std::string, std::string> environment(sources.environment.begin(), sources.environment.end());
  for (const Row& row : rows()) {
    const std::string variable = environment_name(row.info.key);
    auto found = environment.find(variable);
    if (found == environment.end()) continue;
    YOKE_TRY_VOID(add_text(all, row.info.key, found->second, {{}, variable, Strength::environment}));
  }
  YOKE_TRY_VOID(add_sets(all, sources.sets));
  return all;
}

// The weakest part of a model's shape; what is given in [model] goes over it.
Result<void> load_preset(ResolvedSpec& resolved) {
  ModelSpec& model = resolved.spec.model;
  if (model.preset.empty()) return {};
  auto found = find_preset(model.preset);
  if (!found) {
    found.error().what = fmt::format("{}: {}", resolved.origins["model.preset"], found.error().what);
    return tl::unexpected(std::move(found).error());
  }
  model.shape = (*found)->shape;
  for (const Row& row : rows()) {
    const bool shape_key = row.info.key.starts_with("model.") && !is_way_to_model(row.info.key);
    if (shape_key && row.get(resolved.spec)) resolved.origins[row.info.key] = fmt::format("preset {}", model.preset);
  }
  return {};
}

// The first key of the shape itself that is given.
const AllGiven::value_type* first_shape_key(const AllGiven& all) {
  for (const auto& entry : all)
    if (entry.first.starts_with("model.") && !is_way_to_model(entry.first)) return &entry;
  return nullptr;
}

Result<void> check_model_choice(const ModelSpec& model, const AllGiven& all, const std::string& file) {
  const auto* shape_key = first_shape_key(all);
  if (!model.preset.empty() && !model.path.empty()) {
    return fail(ErrorKind::usage,
                fmt::format("{}: model.path is given beside model.preset", all.at("model.path").where),
                "a model is a preset or a path: remove one of them");
  }
  if (!model.path.empty() && shape_key != nullptr) {
    return fail(ErrorKind::usage,
                fmt::format("{}: {} is given beside model.path", shape_key->second.where, shape_key->first),
                "the shape is in the path's config.json: remove one of them");
  }
  if (!model.preset.empty() || !model.path.empty()) return {};
  if (shape_key == nullptr) {
    return fail(ErrorKind::usage, fmt::format("{}: the model is missing", file),
                "add [model] with preset = \"llama-10m\", or a path, or the shape itself");
  }
  for (const std::string key :
       {"model.layers", "model.hidden", "model.heads", "model.ffn", "model.vocab", "model.max_sequence"}) {
    if (all.count(key) > 0) continue;
    return fail(ErrorKind::usage, fmt::format("{}: {} is missing", file, key),
                "without preset and path, [model] needs layers, hidden, heads, ffn, vocab and max_sequence");
  }
  return {};
}

// kv_heads and head_dim follow heads and hidden unless they are given or, for kv_heads, the preset groups its queries.
void derive_shape(ResolvedSpec& resolved, const AllGiven& all) {
  Model& m = resolved.spec.model.shape;
  const bool resized = all.count("model.hidden") > 0 || all.count("model.heads") > 0;
  if (m.heads < 1 || !resized) return;
  const auto preset = find_preset(resolved.spec.model.preset);
  const bool grouped = preset && (*preset)->shape.kv_heads != (*preset)->shape.heads;
  if (all.count("model.kv_heads") == 0 && !grouped) {
    m.kv_heads = m.heads;
    resolved.origins.erase("model.kv_heads");
  }
  if (all.count("model.head_dim") == 0) {
    m.head_dim = m.hidden / m.heads;
    resolved.origins.erase("model.head_dim");
  }
}

Result<void> check_required(const RunSpec& spec, const std::string& file) {
  for (const Row& row : rows()) {
    if (!row.info.required || row.get(spec)) continue;
    auto [section, leaf] = split_key(row.info.key);
    return fail(ErrorKind::usage, fmt::format("{}: {} is missing", file, row.info.key),
                fmt::format("add {} = ... to [{}]: {}", leaf, section, row.info.meaning));
  }
  return {};
}

void fill_origins(ResolvedSpec& resolved) {
  for (const Row& row : rows())
    if (row.get(resolved.spec)) resolved.origins.try_emplace(row.info.key, "default");
}

}  // namespace

Result<ResolvedSpec> parse_run_spec(const SpecSources& sources) {
  YOKE_TRY(const AllGiven all, gather(sources));
  ResolvedSpec resolved;
  for (const Row& row : rows()) {
    auto found = all.find(row.info.key);
    if (found == all.end()) continue;
    YOKE_TRY_VOID(assign(resolved.spec, row, found->second.value, found->second.where));
    resolved.origins[row.info.key] = found->second.where;
    if (is_axis(row.info.key)) resolved.origins["parallel.layout"] = found->second.where;
    if (row.info.key == "model.preset") YOKE_TRY_VOID(load_preset(resolved));
  }
  YOKE_TRY_VOID(check_model_choice(resolved.spec.model, all, sources.file));
  YOKE_TRY_VOID(check_required(resolved.spec, sources.file));
  derive_shape(resolved, all);
  fill_origins(resolved);
  if (resolved.spec.model.shape.family == Family::gpt2 && all.count("model.rope_theta") > 0) {
    return fail(
        ErrorKind::usage,
        fmt::format("{}: model.rope_theta is given, but gpt2 has learned positions", all.at("model.rope_theta").where),
        "remove it, or choose family = \"llama\"");
  }
  YOKE_TRY_VOID(check_consistency(resolved, sources.file));
  return resolved;
}

Result<void> set_model(ResolvedSpec& resolved, const Model& shape, const std::string& origin) {
  resolved.spec.model.shape = shape;
  for (const Row& row : rows()) {
    const bool shape_key = row.info.key.starts_with("model.") && !is_way_to_model(row.info.key);
    if (!shape_key) continue;
    resolved.origins.erase(row.info.key);
    if (row.get(resolved.spec)) resolved.origins[row.info.key] = origin;
  }
  return check_consistency(resolved, origin);
}

}  // namespace yoke
