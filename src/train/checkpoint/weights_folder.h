// The tensors of several safetensors files as one collection.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "train/checkpoint/safetensors.h"

namespace yoke {

class WeightsFolder {
 public:
  // A folder as Hugging Face's hub has them: model.safetensors, or model.safetensors.index.json with the files that it
  // names. Kind environment when neither is there or a file cannot be read, failed when they are corrupt or disagree.
  static Result<WeightsFolder> open(const std::string& folder);
  // All tensors of these files; a name in two of them is an error (kind failed).
  static Result<WeightsFolder> open_files(const std::vector<std::string>& paths);

  std::vector<std::string> names() const;                 // sorted
  const TensorView* find(const std::string& name) const;  // null if there is none; lives as long as this object

 private:
  std::vector<SafetensorsFile> files_;
  std::map<std::string, const TensorView*> tensors_;  // into files_, whose maps stay where they are when moved
};

}  // namespace yoke
