#include "train/checkpoint/checkpoint_writer.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <span>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/text.h"
#include "os/file.h"
#include "train/checkpoint/checksum.h"
#include "train/checkpoint/json_object.h"
#include "train/checkpoint/safetensors.h"

namespace yoke {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) { return std::chrono::duration<double>(Clock::now() - start).count(); }

struct Shard {
  const char* kind;
  std::span<const NamedTensor> tensors;
};

// This rank's files and its "done" file.
Result<void> write_part(const CheckpointWriter::Options& options, const CheckpointJob& job, const std::string& folder) {
  RankPart part;
  for (const NamedTensor& tensor : job.model) {
    part.weights.push_back(tensor.name);
    part.weight_bytes += tensor.view.bytes.size();
  }
  for (const Shard& shard : {Shard{"model", job.model}, Shard{"optimizer", job.optimizer}}) {
    std::string name = shard_file(shard.kind, options.rank, options.ranks);
    YOKE_TRY(WrittenFile written, write_safetensors(folder + "/" + name, shard.tensors, {{"format", "pt"}}));
    part.files.push_back({name, written.bytes, written.xxh3});
  }
  return write_file_atomically(folder + "/" + done_file(options.rank), to_json(part));
}

// All ranks' parts, once they are there.
Result<std::vector<RankPart>> wait_for_parts(const CheckpointWriter::Options& options, const CheckpointJob& job,
                                             const std::string& folder, const std::atomic<bool>& abandoned) {
  std::vector<std::int64_t> absent;
  for (std::int64_t rank = 0; rank < options.ranks; ++rank) absent.push_back(rank);
  for (Clock::time_point start = Clock::now(); true; std::this_thread::sleep_for(std::chrono::milliseconds(5))) {
    std::erase_if(absent, [&](std::int64_t rank) { return exists(folder + "/" + done_file(rank)); });
    if (absent.empty()) break;
    if (abandoned)
      return fail(ErrorKind::interrupted, fmt::format("the checkpoint of step {} was abandoned", job.step));
    if (seconds_since(start) > options.timeout)
      return fail(ErrorKind::timeout,
                  fmt::format("checkpoint of step {}: {} {} did not write {} part within {}", job.step,
                              absent.size() == 1 ? "rank" : "ranks", fmt::join(absent, ", "),
                              absent.size() == 1 ? "its" : "their", format_seconds(options.timeout)),
                  "look at the logs of those ranks; earlier checkpoints are untouched");
  }
  std::vector<RankPart> parts;
  for (std::int64_t rank = 0; rank < options.ranks; ++rank) {
    std::string path = folder + "/" + done_file(rank);
    YOKE_TRY(std::string text, read_file(path));
    YOKE_TRY(RankPart part, rank_part_from_json(text, path));
    parts.push_back(std::move(part));
  }
  return parts;
}

// Index, config and manifest: what makes the parts a checkpoint. Returns its size.
Result<std::int64_t> write_whole(const CheckpointWriter::Options& options, const CheckpointJob& job,
                                 const std::vector<RankPart>& parts, const std::string& folder) {
  Manifest manifest;
  manifest.step = job.step;
  manifest.ranks = options.ranks;
  manifest.state_json = job.state_json;
  std::map<std::string, std::string> weight_map;
  std::uint64_t weight_bytes = 0;
  for (std::size_t rank = 0; rank < parts.size(); ++rank) {
    std::string file = shard_file("model", static_cast<std::int64_t>(rank), options.ranks);
    for (const std::string& weight : parts[rank].weights)
      if (auto [at, added] = weight_map.emplace(weight, file); !added)
        return fail(ErrorKind::failed, fmt::format("checkpoint of step {}: weight {} is in {} and in {}", job.step,
                                                   weight, at->second, file));
    weight_bytes += parts[rank].weight_bytes;
    manifest.files.insert(manifest.files.end(), parts[rank].files.begin(), parts[rank].files.end());
  }
  auto add = [&](const char* name, const std::string& text) {
    manifest.files.push_back({name, text.size(), checksum_of(text)});
    return write_file_atomically(folder + "/" + name, text);
  };
  YOKE_TRY_VOID(add(index_file, weight_index_json(weight_map, weight_bytes)));
  YOKE_TRY_VOID(add(config_file, job.config_json));
  YOKE_TRY(std::string text, to_json(manifest));
  YOKE_TRY_VOID(write_file_atomically(folder + "/" + manifest_file, text));
  auto bytes = static_cast<std::int64_t>(text.size());
  for (const FileRecord& record : manifest.files) bytes += static_cast<std::int64_t>(record.bytes);
  return bytes;
}

// Gives the folder its final name. The one that may have it already is first renamed: .replaced is still found by
// newest_complete when a kill comes between the two. remove_leftovers() deletes it.
Result<void> publish(const std::string& root, const std::string& folder, std::int64_t step) {
  std::string final = root + "/" + step_folder(step);
  std::string replaced = root + "/." + step_folder(step) + ".replaced";
  if (exists(final)) {
    YOKE_TRY_VOID(remove_tree(replaced));
    YOKE_TRY_VOID(rename_path(final, replaced));
  }
  YOKE_TRY_VOID(rename_path(folder, final));
  return sync_folder(root);
}

// From all parts to a checkpoint that is seen. Returns its size.
Result<std::int64_t> complete(const CheckpointWriter::Options& options, const CheckpointJob& job,
                              const std::vector<RankPart>& parts, const std::string& folder) {
  YOKE_TRY(std::int64_t bytes, write_whole(options, job, parts, folder));
  for (std::int64_t rank = 0; rank < options.ranks; ++rank) YOKE_TRY_VOID(remove_tree(folder + "/" + done_file(rank)));
  YOKE_TRY_VOID(publish(options.root, folder, job.step));
  return bytes;
}

std::string partial_folder(const CheckpointWriter::Options& options, std::int64_t step, std::int64_t sequence) {
  return fmt::format("{}/.{}.partial-{}.{}", options.root, step_folder(step), options.attempt, sequence);
}

// Removes what earlier attempts left, and of this attempt what was submitted before `sequence`.
Result<void> remove_leftovers(const CheckpointWriter::Options& options, std::int64_t sequence) {
  YOKE_TRY(auto names, list_folder(options.root));
  for (const std::string& name : names) {
    if (!name.starts_with(".step-")) continue;
    bool stale = name.ends_with(".removed");
    constexpr std::string_view replaced = ".replaced";
    if (name.ends_with(replaced)) {  // a kill came while publish() was at it
      std::string visible = options.root + "/" + name.substr(1, name.size() - 1 - replaced.size());
      stale = exists(visible);
      if (!stale) YOKE_TRY_VOID(rename_path(options.root + "/" + name, visible));
    }
    constexpr std::string_view partial = ".partial-";
    if (std::size_t at = name.find(partial); at != std::string::npos) {
      std::string_view rest = std::string_view(name).substr(at + partial.size());
      std::size_t dot = rest.rfind('.');
      bool ours = rest.substr(0, dot) == options.attempt;
      auto number = dot == rest.npos ? std::nullopt : parse_integer(rest.substr(dot + 1));
      stale = !ours || !number || *number < sequence;
    }
    if (stale) YOKE_TRY_VOID(remove_tree(options.root + "/" + name));
  }
  return {};
}

// Keeps the newest `keep` up to this step. Later steps come from a run that was continued from before them; they are
// left alone until training gets there.
Result<void> remove_old(const CheckpointWriter::Options& options, std::int64_t step) {
  YOKE_TRY(auto names, list_folder(options.root));
  std::vector<std::int64_t> steps;
  for (const std::string& name : names)
    if (auto found = step_of_folder(name); found && *found <= step) steps.push_back(*found);
  std::sort(steps.rbegin(), steps.rend());
  for (std::size_t i = static_cast<std::size_t>(options.keep); i < steps.size(); ++i) {
    std::string path = options.root + "/" + step_folder(steps[i]);
    std::string hidden = options.root + "/." + step_folder(steps[i]) + ".removed";
    YOKE_TRY_VOID(remove_tree(hidden));
    YOKE_TRY_VOID(rename_path(path, hidden));
    YOKE_TRY_VOID(remove_tree(hidden));
  }
  return {};
}

}  // namespace

CheckpointWriter::CheckpointWriter(Options options) : options_(std::move(options)) {
  YOKE_CHECK(options_.rank >= 0 && options_.rank < options_.ranks, "rank {} of {}", options_.rank, options_.ranks);
  YOKE_CHECK(options_.keep >= 1, "keep is {}", options_.keep);
  YOKE_CHECK(is_plain_name(options_.attempt), "attempt \"{}\" cannot be part of a file name", options_.attempt);
}

CheckpointWriter::~CheckpointWriter() { abandoned_ = true; }

Result<void> CheckpointWriter::submit(CheckpointJob job) {
  YOKE_CHECK(job.step >= 0, "step {}", job.step);
  std::int64_t sequence = ++sequence_;
  YOKE_TRY_VOID(finish());
  try {
    // Moved on, so that the tensors are freed when they are written and not when the future is asked.
    pending_ = std::async(std::launch::async,
                          [this, job = std::move(job), sequence]() mutable { return write(std::move(job), sequence); });
  } catch (const std::system_error& error) {
    return fail(ErrorKind::environment,
                fmt::format("cannot start the thread that writes checkpoints: {}", error.what()),
                "raise the limit of processes and threads (ulimit -u)");
  }
  return {};
}

Result<void> CheckpointWriter::finish() {
  if (!pending_.valid()) return {};
  Clock::time_point start = Clock::now();
  Result<void> result = pending_.get();
  waited_seconds_ += seconds_since(start);
  return result;
}

std::vector<FinishedCheckpoint> CheckpointWriter::take_finished() {
  std::lock_guard lock(mutex_);
  return std::exchange(finished_, {});
}

Result<void> CheckpointWriter::write(CheckpointJob job, std::int64_t sequence) {
  Clock::time_point start = Clock::now();
  YOKE_TRY_VOID(make_folders(options_.root));
  // Before the first, because a full disk may be why there was another attempt.
  if (options_.rank == 0 && sequence == 1) YOKE_TRY_VOID(remove_leftovers(options_, sequence));
  std::string folder = partial_folder(options_, job.step, sequence);
  YOKE_TRY_VOID(make_folders(folder));
  if (auto part = write_part(options_, job, folder); !part) {
    // Room for those who can still write.
    for (const char* kind : {"model", "optimizer"})
      (void)remove_tree(folder + "/" + shard_file(kind, options_.rank, options_.ranks));
    return part;
  }
  if (options_.rank != 0) return {};
  job.model.clear();
  job.optimizer.clear();

  YOKE_TRY(auto parts, wait_for_parts(options_, job, folder, abandoned_));
  auto bytes = complete(options_, job, parts, folder);
  if (!bytes) {
    (void)remove_tree(folder);  // nobody else writes there any more
    return tl::unexpected(bytes.error());
  }
  FinishedCheckpoint finished{job.step, options_.root + "/" + step_folder(job.step), 0, *bytes, ""};
  // The checkpoint is complete: what cannot be removed is worth a word and not the run.
  for (const Result<void>& tidied : {remove_leftovers(options_, sequence), remove_old(options_, job.step)})
    if (!tidied) finished.note = tidied.error().what;
  finished.seconds = seconds_since(start);
  std::lock_guard lock(mutex_);
  finished_.push_back(std::move(finished));
  return {};
}

}  // namespace yoke
