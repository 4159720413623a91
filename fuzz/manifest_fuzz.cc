// Any text as each of a checkpoint's JSON files: an error, or something that comes back equal when written.
#include <cstdlib>

#include "train/checkpoint/manifest.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string text(reinterpret_cast<const char*>(data), size);
  if (auto part = yoke::rank_part_from_json(text, "input")) {
    auto again = yoke::rank_part_from_json(yoke::to_json(*part), "again");
    if (!again || *again != *part) std::abort();
  }
  if (auto map = yoke::weight_map_from_json(text, "input")) {
    auto again = yoke::weight_map_from_json(yoke::weight_index_json(*map, size), "again");
    if (!again || *again != *map) std::abort();
  }
  (void)yoke::manifest_from_json(text, "input");
  // The checksum keeps the fuzzer out of the rest, so here the text is the state of a manifest that is well formed.
  yoke::Manifest manifest{.step = 1, .ranks = 1, .files = {}, .state_json = text};
  for (std::string name : {yoke::shard_file("model", 0, 1), yoke::shard_file("optimizer", 0, 1)})
    manifest.files.push_back({name, size, size});
  for (const char* name : {yoke::index_file, yoke::config_file}) manifest.files.push_back({name, 0, 0});
  if (auto written = yoke::to_json(manifest)) {
    auto read = yoke::manifest_from_json(*written, "again");
    if (!read || read->files != manifest.files) std::abort();
    manifest.state_json = read->state_json;
    if (yoke::to_json(manifest) != *written) std::abort();
  }
  return 0;
}
