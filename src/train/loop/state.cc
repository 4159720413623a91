#include "train/loop/state.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "core/spec/hf_config.h"
#include "train/checkpoint/weights_folder.h"
#include "train/loop/tensors.h"

namespace yoke {
namespace {

// Which rank writes each entry: the largest first, always to the rank with the least.
std::vector<int> deal(const std::vector<FlatEntry>& entries, int ranks) {
  std::vector<std::size_t> order(entries.size());
  for (std::size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return entries[a].numel > entries[b].numel; });
  std::vector<std::int64_t> load(static_cast<std::size_t>(ranks));
  std::vector<int> owner(entries.size());
  for (std::size_t i : order) {
    auto least = std::min_element(load.begin(), load.end());
    owner[i] = static_cast<int>(least - load.begin());
    *least += entries[i].numel;
  }
  return owner;
}

Result<void> load_into(const at::Tensor& flat, const FlatEntry& entry, const TensorView* view, const std::string& name,
                       const std::string& from) {
  if (view == nullptr)
    return fail(ErrorKind::failed, fmt::format("{} holds no tensor {}", from, name), "was it written for this model?");
  YOKE_TRY(at::Tensor values, tensor_from(*view, name));
  if (!values.sizes().equals(entry.parameter.sizes()))
    return fail(ErrorKind::failed,
                fmt::format("{}: {} has the shape {}, the model's is {}", from, name, c10::str(values.sizes()),
                            c10::str(entry.parameter.sizes())),
                "was it written for this model?");
  at::NoGradGuard no_grad;
  FlatParameters::view(flat, entry).copy_(values);
  return {};
}

}  // namespace

CheckpointJob make_checkpoint(Trainer& trainer, const RunSpec& spec, std::int64_t step, int rank, int ranks) {
  CheckpointJob job;
  job.step = step;
  const std::vector<FlatEntry>& entries = trainer.flat().entries();
  AdamW& optimizer = trainer.optimizer();
  std::vector<int> owner = deal(entries, ranks);
  for (std::size_t i = 0; i < entries.size(); ++i) {
    if (owner[i] != rank) continue;
    job.model.push_back(snapshot(entries[i].name, FlatParameters::view(optimizer.weights(), entries[i])));
    job.optimizer.push_back(
        snapshot(entries[i].name + ".exp_avg", FlatParameters::view(optimizer.exp_avg(), entries[i])));
    job.optimizer.push_back(
        snapshot(entries[i].name + ".exp_avg_sq", FlatParameters::view(optimizer.exp_avg_sq(), entries[i])));
  }
  job.config_json = hf_config_from_model(spec.model.shape, "float32");
  job.state_json = nlohmann::json{{"next_step", step},
                                  {"optimizer_steps", optimizer.steps()},
                                  {"seed", spec.train.seed},
                                  {"global_batch", spec.train.global_batch}}
                       .dump();
  return job;
}

Result<void> load_checkpoint(Trainer& trainer, const CheckpointReader& reader) {
  AdamW& optimizer = trainer.optimizer();
  for (const FlatEntry& entry : trainer.flat().entries()) {
    YOKE_TRY_VOID(load_into(optimizer.weights(), entry, reader.find_model(entry.name), entry.name, reader.path()));
    for (auto [suffix, flat] :
         {std::pair(".exp_avg", optimizer.exp_avg()), std::pair(".exp_avg_sq", optimizer.exp_avg_sq())})
      YOKE_TRY_VOID(
          load_into(flat, entry, reader.find_optimizer(entry.name + suffix), entry.name + suffix, reader.path()));
  }
  auto state = nlohmann::json::parse(reader.state_json(), nullptr, false);
  if (!state.is_object() || !state.contains("optimizer_steps") || !state["optimizer_steps"].is_number_integer())
    return fail(ErrorKind::failed, fmt::format("{}: its state has no optimizer_steps", reader.path()),
                "it was not written by this engine");
  optimizer.set_steps(state["optimizer_steps"].get<std::int64_t>());
  optimizer.publish();
  return {};
}

Result<void> load_weights(Trainer& trainer, const std::string& folder) {
  Result<WeightsFolder> opened = WeightsFolder::open(folder);
  if (!opened) {
    Error error = opened.error();
    if (error.hint.empty()) error.hint = "the file is damaged, or no safetensors file: fetch it again";
    return tl::unexpected(error);
  }
  const WeightsFolder& weights = *opened;
  std::set<std::string> known;
  for (const FlatEntry& entry : trainer.flat().entries()) {
    const TensorView* view = weights.find(entry.name);
    std::string name = entry.name;
    if (view == nullptr && name.starts_with("transformer.")) {  // GPT-2's original files leave the prefix out
      name = name.substr(std::string_view("transformer.").size());
      view = weights.find(name);
    }
    YOKE_TRY_VOID(load_into(trainer.optimizer().weights(), entry, view, name, folder));
    known.insert(name);
  }
  for (const std::string& name : weights.names()) {
    if (known.contains(name)) continue;
    // Buffers that older files carry: the causal mask, the rotary frequencies. And the head of a tied model, which is
    // the embedding.
    bool buffer =
        name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") || name.ends_with("rotary_emb.inv_freq");
    bool tied_head = trainer.model().model().tied && name == "lm_head.weight";
    if (!buffer && !tied_head)
      return fail(ErrorKind::failed, fmt::format("{} holds {}, which this model does not have", folder, name),
                  "does its config.json belong to these weights?");
  }
  trainer.optimizer().publish();
  return {};
}

}  // namespace yoke
