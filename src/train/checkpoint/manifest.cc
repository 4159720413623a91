#include "train/checkpoint/manifest.h"

#include <charconv>
#include <set>

#include "core/base/text.h"
#include "train/checkpoint/checksum.h"
#include "train/checkpoint/json_object.h"

namespace yoke {
namespace {

using nlohmann::json;

constexpr int schema = 1;
constexpr int deepest_state = 32;  // so that a manifest around it can be read back

std::string hex(std::uint64_t value) { return fmt::format("{:016x}", value); }

Result<std::uint64_t> hex_member(const json& object, const char* key, const std::string& file) {
  YOKE_TRY(std::string text, string_member(object, key, file));
  std::uint64_t value = 0;
  auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size() || text.size() != 16)
    return fail(ErrorKind::failed, fmt::format("{}: \"{}\" is \"{}\", not 16 hexadecimal digits", file, key, text));
  return value;
}

json files_json(const std::vector<FileRecord>& files) {
  json list = json::array();
  for (const FileRecord& record : files)
    list.push_back({{"name", record.name}, {"bytes", record.bytes}, {"xxh3", hex(record.xxh3)}});
  return list;
}

Result<std::vector<FileRecord>> files_member(const json& object, const std::string& file) {
  YOKE_TRY(json list, array_member(object, "files", file));
  std::vector<FileRecord> files;
  for (const json& item : list) {
    FileRecord record;
    YOKE_TRY(record.name, string_member(item, "name", file));
    if (!is_plain_name(record.name))
      return fail(ErrorKind::failed, fmt::format("{}: \"{}\" is no name of a file", file, record.name));
    YOKE_TRY(auto bytes, integer_member(item, "bytes", file));
    record.bytes = static_cast<std::uint64_t>(bytes);
    YOKE_TRY(record.xxh3, hex_member(item, "xxh3", file));
    files.push_back(std::move(record));
  }
  return files;
}

// Exactly the files of a checkpoint by so many ranks: what is not listed would be read without being verified.
Result<void> check_files(const Manifest& manifest, const std::string& file) {
  std::set<std::string> listed, expected{index_file, config_file};
  for (const FileRecord& record : manifest.files) listed.insert(record.name);
  // A number of ranks out of thin air must not make a long loop.
  bool fits = manifest.ranks >= 1 && static_cast<std::uint64_t>(manifest.ranks) <= manifest.files.size() / 2;
  for (std::int64_t rank = 0; fits && rank < manifest.ranks; ++rank)
    for (const char* kind : {"model", "optimizer"}) expected.insert(shard_file(kind, rank, manifest.ranks));
  if (!fits || listed != expected || manifest.files.size() != expected.size())
    return fail(ErrorKind::failed, fmt::format("{} does not list the files of a checkpoint by {} ranks: {}", file,
                                               manifest.ranks, fmt::join(listed, ", ")));
  return {};
}

}  // namespace

Result<std::string> to_json(const Manifest& manifest) {
  YOKE_TRY(json state, parse_json_object(manifest.state_json, "the state of a checkpoint", deepest_state));
  json object = {{"schema", schema},
                 {"step", manifest.step},
                 {"ranks", manifest.ranks},
                 {"files", files_json(manifest.files)},
                 {"state", std::move(state)}};
  object["xxh3"] = hex(checksum_of(object.dump()));
  return object.dump(1) + "\n";
}

Result<Manifest> manifest_from_json(std::string_view text, const std::string& file) {
  YOKE_TRY(json object, parse_json_object(text, file));
  YOKE_TRY(auto found_schema, integer_member(object, "schema", file));
  if (found_schema != schema)
    return fail(ErrorKind::failed, fmt::format("{} has schema {}; this version reads {}", file, found_schema, schema),
                "read it with the version of Yoke that wrote it");
  YOKE_TRY(auto xxh3, hex_member(object, "xxh3", file));
  object.erase("xxh3");
  // Over the values as they are written, so that white space does not count.
  if (std::uint64_t now = checksum_of(object.dump()); now != xxh3)
    return fail(ErrorKind::failed, fmt::format("{} is damaged: its checksum is {}, not {}", file, hex(now), hex(xxh3)));
  Manifest manifest;
  YOKE_TRY(manifest.step, integer_member(object, "step", file));
  YOKE_TRY(manifest.ranks, integer_member(object, "ranks", file));
  YOKE_TRY(manifest.files, files_member(object, file));
  YOKE_TRY(json state, object_member(object, "state", file));
  manifest.state_json = state.dump();
  YOKE_TRY_VOID(check_files(manifest, file));
  return manifest;
}

std::string to_json(const RankPart& part) {
  json object = {{"files", files_json(part.files)}, {"weights", part.weights}, {"weight_bytes", part.weight_bytes}};
  return object.dump(1) + "\n";
}

Result<RankPart> rank_part_from_json(std::string_view text, const std::string& file) {
  YOKE_TRY(json object, parse_json_object(text, file));
  RankPart part;
  YOKE_TRY(part.files, files_member(object, file));
  YOKE_TRY(json weights, array_member(object, "weights", file));
  for (const json& name : weights) {
    if (!name.is_string())
      return fail(ErrorKind::failed, fmt::format("{}: {} is no name of a weight", file, name.dump()));
    part.weights.push_back(name.get<std::string>());
  }
  YOKE_TRY(auto bytes, integer_member(object, "weight_bytes", file));
  part.weight_bytes = static_cast<std::uint64_t>(bytes);
  return part;
}

std::string weight_index_json(const std::map<std::string, std::string>& weight_map, std::uint64_t total_bytes) {
  json object = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}};
  return object.dump(1) + "\n";
}

Result<std::map<std::string, std::string>> weight_map_from_json(std::string_view text, const std::string& file) {
  YOKE_TRY(json object, parse_json_object(text, file));
  YOKE_TRY(json map, object_member(object, "weight_map", file));
  std::map<std::string, std::string> weight_map;
  for (const auto& [weight, value] : map.items()) {
    if (!value.is_string() || !is_plain_name(value.get<std::string>()))
      return fail(ErrorKind::failed,
                  fmt::format("{}: weight {} is in {}, which is no name of a file", file, weight, value.dump()));
    weight_map[weight] = value.get<std::string>();
  }
  return weight_map;
}

std::string step_folder(std::int64_t step) { return fmt::format("step-{:08d}", step); }

std::optional<std::int64_t> step_of_folder(std::string_view name) {
  if (!name.starts_with("step-")) return std::nullopt;
  auto step = parse_integer(name.substr(5));
  if (!step || *step < 0 || step_folder(*step) != name) return std::nullopt;
  return step;
}

std::string shard_file(std::string_view kind, std::int64_t rank, std::int64_t ranks) {
  return fmt::format("{}-{:05d}-of-{:05d}.safetensors", kind, rank + 1, ranks);
}

std::string done_file(std::int64_t rank) { return fmt::format("rank-{:05d}.done.json", rank); }

}  // namespace yoke
