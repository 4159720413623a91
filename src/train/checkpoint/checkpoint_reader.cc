#include "train/checkpoint/checkpoint_reader.h"

#include <algorithm>
#include <atomic>
#include <future>

#include "os/file.h"
#include "train/checkpoint/checksum.h"

namespace yoke {
namespace {

Result<void> verify(const std::string& folder, const FileRecord& record, bool checksums) {
  std::string path = folder + "/" + record.name;
  YOKE_TRY(std::uint64_t bytes, file_size(path));
  if (bytes != record.bytes)
    return fail(ErrorKind::failed, fmt::format("{} has {} bytes, its manifest says {}", path, bytes, record.bytes));
  if (!checksums) return {};
  Checksum checksum;
  YOKE_TRY_VOID(read_pieces(path, [&](std::span<const std::byte> piece) { checksum.add(piece); }));
  if (checksum.value() != record.xxh3)
    return fail(ErrorKind::failed, fmt::format("{} is damaged: its checksum is {:016x}, its manifest says {:016x}",
                                               path, checksum.value(), record.xxh3));
  return {};
}

// With two threads where there can be two: one reads while the other counts.
Result<void> verify_all(const std::string& folder, const std::vector<FileRecord>& files, bool checksums) {
  std::atomic<std::size_t> next = 0;
  auto work = [&]() -> Result<void> {
    for (std::size_t i = next++; i < files.size(); i = next++) YOKE_TRY_VOID(verify(folder, files[i], checksums));
    return {};
  };
  auto second = std::async(work);
  Result<void> first = work();
  Result<void> other = second.get();
  return first ? other : first;
}

// A hidden name that the writer gives a checkpoint for the moment in which another takes its place.
std::optional<std::int64_t> step_of_replaced(std::string_view name) {
  constexpr std::string_view end = ".replaced";
  if (!name.starts_with('.') || !name.ends_with(end)) return std::nullopt;
  return step_of_folder(name.substr(1, name.size() - 1 - end.size()));
}

}  // namespace

Result<CheckpointReader> CheckpointReader::open(const std::string& folder, bool checksums) {
  if (!is_folder(folder)) return fail(ErrorKind::environment, folder + " is no folder", "check the path");
  auto damaged = [](Error error) {  // of whatever kind reading it was
    return fail(ErrorKind::failed, std::move(error.what), "resume from another checkpoint");
  };
  std::string manifest_path = folder + "/" + manifest_file;
  if (!exists(manifest_path)) {
    std::string newest;
    for (const std::string& name : list_folder(folder).value_or(std::vector<std::string>()))
      if (step_of_folder(name)) newest = std::max(newest, name);
    if (!newest.empty())
      return fail(ErrorKind::failed, folder + " is no checkpoint: it holds checkpoints",
                  fmt::format("give a step's folder, for example {}/{}", folder, newest));
  }
  auto text = read_file(manifest_path);
  if (!text) return damaged(text.error());
  auto manifest = manifest_from_json(*text, manifest_path);
  if (!manifest) return damaged(manifest.error());
  if (auto verified = verify_all(folder, manifest->files, checksums); !verified) return damaged(verified.error());

  std::vector<std::string> model_paths, optimizer_paths;
  for (std::int64_t rank = 0; rank < manifest->ranks; ++rank) {
    model_paths.push_back(folder + "/" + shard_file("model", rank, manifest->ranks));
    optimizer_paths.push_back(folder + "/" + shard_file("optimizer", rank, manifest->ranks));
  }
  auto model = WeightsFolder::open_files(model_paths);
  if (!model) return damaged(model.error());
  auto optimizer = WeightsFolder::open_files(optimizer_paths);
  if (!optimizer) return damaged(optimizer.error());
  return CheckpointReader(folder, *std::move(manifest), *std::move(model), *std::move(optimizer));
}

Result<std::optional<CheckpointReader>> newest_complete(const std::string& root, std::vector<std::string>& notes) {
  std::optional<CheckpointReader> none;
  if (!exists(root)) return none;
  YOKE_TRY(auto names, list_folder(root));
  struct Candidate {
    std::int64_t step;
    bool visible;
    std::string name;
    auto operator<=>(const Candidate&) const = default;
  };
  std::vector<Candidate> candidates;
  for (const std::string& name : names) {
    if (auto step = step_of_folder(name)) candidates.push_back({*step, true, name});
    if (auto step = step_of_replaced(name)) candidates.push_back({*step, false, name});
  }
  std::sort(candidates.rbegin(), candidates.rend());
  for (const Candidate& candidate : candidates) {
    auto reader = CheckpointReader::open(root + "/" + candidate.name);
    if (reader && reader->step() == candidate.step) return std::optional(*std::move(reader));
    notes.push_back(
        fmt::format("checkpoint {} is passed over: {}", candidate.name,
                    reader ? fmt::format("its manifest says step {}", reader->step()) : reader.error().what));
  }
  return none;
}

}  // namespace yoke
