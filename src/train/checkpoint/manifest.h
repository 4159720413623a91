// What a checkpoint folder holds, and how its names and its JSON files look.
//
//   step-00000100/
//     model-00001-of-00002.safetensors      rank 0's share of the fp32 weights, by Hugging Face's names
//     model-00002-of-00002.safetensors      rank 1's
//     model.safetensors.index.json          which weight is in which file
//     config.json                           with the two above: what transformers' from_pretrained loads
//     optimizer-00001-of-00002.safetensors  rank 0's share of the optimiser's state, ...
//     manifest.json                         every other file with its size and XXH3-64; written last
//
// While ranks still write, the folder is called .step-00000100.partial-..., and each rank that is done has left a
// rank-00001.done.json there.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"

namespace yoke {

inline constexpr const char* manifest_file = "manifest.json";
inline constexpr const char* config_file = "config.json";
inline constexpr const char* index_file = "model.safetensors.index.json";

struct FileRecord {
  std::string name;
  std::uint64_t bytes = 0;
  std::uint64_t xxh3 = 0;  // as 16 hexadecimal digits in the file: JSON's numbers are too small for some readers
  bool operator==(const FileRecord&) const = default;
};

// {"schema": 1, "step", "ranks", "files": [{"name", "bytes", "xxh3"}], "state": {...}, "xxh3"}; the last is the
// checksum of all the others, so that a flipped bit in here is found too.
struct Manifest {
  std::int64_t step = 0;
  std::int64_t ranks = 0;  // that wrote it; any number may read it
  std::vector<FileRecord> files;
  std::string state_json = "{}";  // the engine's: an object; comes back equal as JSON, not as text
};

// Errors (kind failed) name `file`; of to_json: state_json is no JSON object.
Result<std::string> to_json(const Manifest& manifest);
Result<Manifest> manifest_from_json(std::string_view text, const std::string& file);

// What one rank has written: its .done.json.
struct RankPart {
  std::vector<FileRecord> files;
  std::vector<std::string> weights;  // the names in its model file
  std::uint64_t weight_bytes = 0;
  bool operator==(const RankPart&) const = default;
};

std::string to_json(const RankPart& part);
Result<RankPart> rank_part_from_json(std::string_view text, const std::string& file);

// Hugging Face's index: {"metadata": {"total_size"}, "weight_map": {weight: file}}.
std::string weight_index_json(const std::map<std::string, std::string>& weight_map, std::uint64_t total_bytes);
Result<std::map<std::string, std::string>> weight_map_from_json(std::string_view text, const std::string& file);

std::string step_folder(std::int64_t step);                                            // step-00000100
std::optional<std::int64_t> step_of_folder(std::string_view name);                     // only for such a name
std::string shard_file(std::string_view kind, std::int64_t rank, std::int64_t ranks);  // "model", "optimizer"
std::string done_file(std::int64_t rank);

}  // namespace yoke
