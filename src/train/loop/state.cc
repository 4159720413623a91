#include "train/loop/state.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <nlohmann/json.hpp>
#include <set>

#include "core/parallel/deal.h"
#include "core/spec/hf_config.h"
#include "train/checkpoint/weights_folder.h"
#include "train/loop/tensors.h"

namespace yoke {
namespace {

Result<at::Tensor> stored(const FlatEntry& entry, const TensorView* view, const std::string& name,
                          const std::string& from) {
  if (view == nullptr)
    return fail(ErrorKind::failed, fmt::format("{} holds no tensor {}", from, name), "was it written for this model?");
  YOKE_TRY(at::Tensor values, tensor_from(*view, name));
  if (!values.sizes().equals(entry.parameter.sizes()))
    return fail(ErrorKind::failed,
                fmt::format("{}: {} has the shape {}, the model's is {}", from, name, c10::str(values.sizes()),
                            c10::str(entry.parameter.sizes())),
                "was it written for this model?");
  return values;
}

// This rank's part of a whole tensor, into its shard of a part of the optimizer's state.
Result<void> load_part(Trainer& trainer, AdamW::Part which, const FlatEntry& entry, const at::Tensor& values) {
  at::NoGradGuard no_grad;
  const FlatParameters& flat = trainer.flat();
  ShardPart part = part_in_shard(flat.map(), entry.place, flat.groups().shard->rank());
  if (part.numel == 0) return {};
  YOKE_TRY(at::Tensor shard, trainer.optimizer().read(which, entry.place.unit));
  shard.narrow(0, part.at, part.numel).copy_(values.reshape({-1}).narrow(0, part.first, part.numel));
  return trainer.optimizer().write(which, entry.place.unit, shard);
}

// The optimizer's state in files: suffixes of the parameters' names.
constexpr std::pair<const char*, AdamW::Part> moments[] = {{".exp_avg", AdamW::Part::exp_avg},
                                                           {".exp_avg_sq", AdamW::Part::exp_avg_sq}};

}  // namespace

Result<CheckpointJob> make_checkpoint(Trainer& trainer, const RunSpec& spec, std::int64_t step, int rank, int ranks) {
  CheckpointJob job;
  job.step = step;
  const FlatParameters& flat = trainer.flat();
  const std::vector<FlatEntry>& entries = flat.entries();
  AdamW& optimizer = trainer.optimizer();
  std::vector<std::int64_t> sizes;
  for (const FlatEntry& entry : entries) sizes.push_back(entry.place.numel);
  std::vector<int> owner = deal(sizes, ranks);
  // Where the state does not fit in memory, neither does a copy.
  const bool on_disk = spec.offload.optimizer == Offload::file || spec.offload.parameters == Offload::file;
  auto keep = [&](const std::string& name, const at::Tensor& tensor) -> Result<NamedTensor> {
    if (on_disk) return snapshot_on_disk(name, tensor, spec.offload.path);
    return snapshot(name, tensor);
  };
  for (int u = 0; u < flat.unit_count(); ++u) {
    std::vector<std::pair<std::string, AdamW::Part>> parts{{"", AdamW::Part::weights}};
    if (flat.map().units[static_cast<std::size_t>(u)].trainable)
      parts.insert(parts.end(), std::begin(moments), std::end(moments));
    for (const auto& [suffix, part] : parts) {
      YOKE_TRY(at::Tensor shard, optimizer.read(part, u));
      YOKE_TRY(auto tensors, flat.gather("checkpoint" + suffix, u, shard));
      for (std::size_t i = 0; i < entries.size(); ++i)
        if (entries[i].place.unit == u && owner[i] == rank) {
          YOKE_TRY(NamedTensor copy, keep(entries[i].name + suffix, tensors.at(entries[i].name)));
          (suffix.empty() ? job.model : job.optimizer).push_back(std::move(copy));
        }
    }
  }
  job.config_json = hf_config_from_model(spec.model.shape, "float32");
  nlohmann::json state{{"next_step", step},
                       {"optimizer_steps", optimizer.steps()},
                       {"seed", spec.train.seed},
                       {"global_batch", spec.train.global_batch}};
  if (const auto& scaler = trainer.loss_scaler())
    state["loss_scale"] = {{"scale", scaler->state().scale}, {"good_steps", scaler->state().good_steps}};
  job.state_json = state.dump();
  return job;
}

Result<void> load_checkpoint(Trainer& trainer, const CheckpointReader& reader) {
  AdamW& optimizer = trainer.optimizer();
  for (const FlatEntry& entry : trainer.flat().entries()) {
    YOKE_TRY(at::Tensor weights, stored(entry, reader.find_model(entry.name), entry.name, reader.path()));
    YOKE_TRY_VOID(load_part(trainer, AdamW::Part::weights, entry, weights));
    if (!entry.parameter.requires_grad()) continue;
    for (const auto& [suffix, part] : moments) {
      std::string name = entry.name + suffix;
      const TensorView* view = reader.find_optimizer(name);
      if (view == nullptr)
        return fail(ErrorKind::failed, fmt::format("{} holds no tensor {}", reader.path(), name),
                    "was this parameter frozen when it was written? train.freeze must freeze at least what it did "
                    "then");
      YOKE_TRY(at::Tensor values, stored(entry, view, name, reader.path()));
      YOKE_TRY_VOID(load_part(trainer, part, entry, values));
    }
  }
  auto state = nlohmann::json::parse(reader.state_json(), nullptr, false);
  if (!state.is_object() || !state.contains("optimizer_steps") || !state["optimizer_steps"].is_number_integer())
    return fail(ErrorKind::failed, fmt::format("{}: its state has no optimizer_steps", reader.path()),
                "it was not written by this engine");
  optimizer.set_steps(state["optimizer_steps"].get<std::int64_t>());
  if (auto& scaler = trainer.loss_scaler(); scaler && state.contains("loss_scale")) {
    const auto& saved = state["loss_scale"];
    if (!saved.is_object() || !saved.value("scale", nlohmann::json()).is_number() ||
        !saved.value("good_steps", nlohmann::json()).is_number_integer())
      return fail(ErrorKind::failed, fmt::format("{}: its loss scale is damaged", reader.path()),
                  "it was not written by this engine");
    YOKE_TRY_VOID(scaler->restore({saved["scale"].get<double>(), saved["good_steps"].get<std::int64_t>()}));
  }
  return trainer.publish_parameters();
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
    YOKE_TRY(at::Tensor values, stored(entry, view, name, folder));
    YOKE_TRY_VOID(load_part(trainer, AdamW::Part::weights, entry, values));
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
  return trainer.publish_parameters();
}

}  // namespace yoke
