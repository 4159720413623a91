#include "train/checkpoint/weights_folder.h"

#include <set>

#include "train/checkpoint/manifest.h"

namespace yoke {
namespace {

constexpr const char* single_file = "model.safetensors";

}  // namespace

Result<WeightsFolder> WeightsFolder::open(const std::string& folder) {
  if (exists(folder + "/" + single_file)) return open_files({folder + "/" + single_file});
  std::string index = folder + "/" + index_file;
  if (!exists(index))
    return fail(ErrorKind::environment, fmt::format("{} has neither {} nor {}", folder, single_file, index_file),
                "name a folder with weights in safetensors");
  YOKE_TRY(std::string text, read_file(index));
  YOKE_TRY(auto weight_map, weight_map_from_json(text, index));

  std::set<std::string> names;
  for (const auto& [weight, file] : weight_map) names.insert(file);
  WeightsFolder weights;
  std::map<std::string, std::size_t> position;
  for (const std::string& name : names) {
    position[name] = weights.files_.size();
    YOKE_TRY(auto file, SafetensorsFile::open(folder + "/" + name));
    weights.files_.push_back(std::move(file));
  }
  for (const auto& [weight, file] : weight_map) {
    const TensorView* view = weights.files_[position[file]].find(weight);
    if (view == nullptr)
      return fail(ErrorKind::failed,
                  fmt::format("{} says that {} is in {}, which has no such tensor", index, weight, file));
    weights.tensors_[weight] = view;
  }
  return weights;
}

Result<WeightsFolder> WeightsFolder::open_files(const std::vector<std::string>& paths) {
  WeightsFolder weights;
  for (const std::string& path : paths) {
    YOKE_TRY(auto file, SafetensorsFile::open(path));
    weights.files_.push_back(std::move(file));
  }
  for (const SafetensorsFile& file : weights.files_)
    for (const std::string& name : file.names())
      if (!weights.tensors_.emplace(name, file.find(name)).second)
        return fail(ErrorKind::failed,
                    fmt::format("tensor {} is in {} and in another file of its folder", name, file.path()));
  return weights;
}

std::vector<std::string> WeightsFolder::names() const {
  std::vector<std::string> names;
  for (const auto& [name, view] : tensors_) names.push_back(name);
  return names;
}

const TensorView* WeightsFolder::find(const std::string& name) const {
  auto found = tensors_.find(name);
  return found == tensors_.end() ? nullptr : found->second;
}

}  // namespace yoke
