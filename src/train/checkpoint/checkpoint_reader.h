// A complete checkpoint, verified, for any number of ranks: also another number than wrote it.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "train/checkpoint/manifest.h"
#include "train/checkpoint/weights_folder.h"

namespace yoke {

class CheckpointReader {
 public:
  // Reads the manifest, verifies the size and the checksum of every file, and maps the tensors. Anything damaged or
  // absent is an error of kind failed that names the file. With many ranks let one verify and the others open with
  // `checksums` false.
  static Result<CheckpointReader> open(const std::string& folder, bool checksums = true);

  const std::string& path() const { return path_; }
  std::int64_t step() const { return manifest_.step; }
  std::int64_t ranks() const { return manifest_.ranks; }  // that wrote it
  const std::string& state_json() const { return manifest_.state_json; }

  // Null if there is no such tensor. The views live as long as the reader, also when the folder is removed meanwhile.
  const TensorView* find_model(const std::string& name) const { return model_.find(name); }
  const TensorView* find_optimizer(const std::string& name) const { return optimizer_.find(name); }
  std::vector<std::string> model_names() const { return model_.names(); }
  std::vector<std::string> optimizer_names() const { return optimizer_.names(); }

 private:
  CheckpointReader(std::string path, Manifest manifest, WeightsFolder model, WeightsFolder optimizer)
      : path_(std::move(path)),
        manifest_(std::move(manifest)),
        model_(std::move(model)),
        optimizer_(std::move(optimizer)) {}
  std::string path_;
  Manifest manifest_;
  WeightsFolder model_, optimizer_;
};

// The newest checkpoint below root that is whole; nothing if there is none, also when root does not exist. Each damaged
// one that is passed over leaves a note with its name and what is wrong.
Result<std::optional<CheckpointReader>> newest_complete(const std::string& root, std::vector<std::string>& notes);

}  // namespace yoke
