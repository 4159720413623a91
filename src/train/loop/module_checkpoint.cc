#include "train/loop/module_checkpoint.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/serialize/archive.h>

#include <algorithm>
#include <map>
#include <random>
#include <sstream>

#include "core/parallel/deal.h"
#include "train/checkpoint/checkpoint_reader.h"
#include "train/checkpoint/checkpoint_writer.h"
#include "train/loop/optimizer_state.h"
#include "train/loop/tensors.h"
#include "train/optim/loss_scaler.h"
#include "train/parallel/flat_parameters.h"

namespace yoke {
namespace {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

// Beside the optimizer's tensors: libtorch's archive of each parameter group's options, as bytes; and what fp16 needs.
std::string options_name(std::size_t group) { return fmt::format("torch_options.{}", group); }
constexpr const char* loss_scale_name = "loss_scale";  // the scale, and the good steps since it changed

// What is saved and loaded.
struct Subject {
  torch::nn::Module& module;
  DataParallelModule* parallel = nullptr;  // null: the bare module

  int zero() const { return parallel == nullptr ? 0 : parallel->flat().zero(); }
  const FlatParameters& flat() const { return parallel->flat(); }
};

NamedTensors named(const torch::OrderedDict<std::string, at::Tensor>& dictionary) {
  NamedTensors tensors;
  for (const auto& item : dictionary) tensors.emplace_back(item.key(), item.value());
  return tensors;
}

// A tensor that the optimizer updates: a whole parameter, or this rank's shard of a unit (then without a name).
struct Updated {
  at::Tensor tensor;
  std::string name;
  int unit = 0;
};

// In the optimizer's order, which is the same on every rank.
Result<std::vector<Updated>> updated_by(const torch::optim::Optimizer& optimizer, const Subject& subject) {
  if (empty_state(optimizer) == nullptr)
    return fail(ErrorKind::usage, "this optimizer's state cannot be saved by parameter",
                "Adam, AdamW, SGD, RMSprop and Adagrad can; pass a null optimizer to save the weights alone");
  std::map<const void*, Updated> known;
  if (subject.zero() == 0) {
    for (const auto& [name, parameter] : named(subject.module.named_parameters()))
      known.try_emplace(parameter.unsafeGetTensorImpl(), Updated{parameter, name});
  } else {
    const std::vector<at::Tensor> shards = subject.parallel->parameters();
    std::size_t next = 0;
    for (int u = 0; u < subject.flat().unit_count(); ++u) {
      if (!subject.flat().gradient_shard(u).defined()) continue;
      const at::Tensor& shard = shards[next++];
      known.try_emplace(shard.unsafeGetTensorImpl(), Updated{shard, "", u});
    }
  }
  std::vector<Updated> updated;
  for (const auto& group : optimizer.param_groups())
    for (const at::Tensor& tensor : group.params()) {
      auto at = known.find(tensor.unsafeGetTensorImpl());
      if (at == known.end())
        return fail(ErrorKind::usage,
                    fmt::format("the optimizer updates a tensor of shape {} that is none of this module's",
                                c10::str(tensor.sizes())),
                    subject.zero() == 0 ? "make it with the module's parameters()"
                                        : "make it with DataParallelModule::parameters()");
      updated.push_back(at->second);
    }
  return updated;
}

// Null where there is none: before the first step.
torch::optim::OptimizerParamState* state_of(const torch::optim::Optimizer& optimizer, const at::Tensor& tensor) {
  auto at = optimizer.state().find(tensor.unsafeGetTensorImpl());
  return at == optimizer.state().end() ? nullptr : at->second.get();
}

at::Tensor options_bytes(const torch::optim::OptimizerOptions& options) {
  torch::serialize::OutputArchive archive;
  options.serialize(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  std::string bytes = std::move(stream).str();
  return at::from_blob(bytes.data(), {static_cast<std::int64_t>(bytes.size())}, at::kByte).clone();
}

// This rank's share of a checkpoint. Where tensors are cut, every rank takes part in putting them together, so that the
// checks which may fail come first and fail on all ranks alike.
class Collector {
 public:
  Collector(const Subject& subject, int rank, int writers) : subject_(subject), rank_(rank) {
    NamedTensors parameters = named(subject.module.named_parameters());
    std::vector<std::int64_t> sizes;
    for (const auto& [name, parameter] : parameters) sizes.push_back(parameter.numel());
    std::vector<int> writer = deal(sizes, writers);
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      writer_of_[parameters[i].first] = writer[i];
      names_of_[parameters[i].second.unsafeGetTensorImpl()].push_back(parameters[i].first);
    }
  }

  Result<CheckpointJob> collect(const torch::optim::Optimizer* optimizer) {
    std::vector<Updated> updated;
    if (optimizer != nullptr) {
      YOKE_TRY(updated, updated_by(*optimizer, subject_));
    }
    YOKE_TRY_VOID(weights());
    for (const Updated& each : updated) YOKE_TRY_VOID(state(each, state_of(*optimizer, each.tensor)));
    if (rank_ != 0) return Result<CheckpointJob>(std::move(job_));
    for (const auto& [name, buffer] : named(subject_.module.named_buffers()))
      job_.model.push_back(snapshot(name, buffer));
    for (std::size_t g = 0; optimizer != nullptr && g < optimizer->param_groups().size(); ++g)
      job_.optimizer.push_back(snapshot(options_name(g), options_bytes(optimizer->param_groups()[g].options())));
    if (subject_.parallel != nullptr && subject_.parallel->loss_scaler() != nullptr) {
      LossScaler::State scale = subject_.parallel->loss_scaler()->state();
      job_.optimizer.push_back(
          snapshot(loss_scale_name, at::tensor({scale.scale, static_cast<double>(scale.good_steps)}, at::kDouble)));
    }
    return Result<CheckpointJob>(std::move(job_));
  }

 private:
  Result<void> weights() {
    if (subject_.zero() < 3) {
      for (const auto& [name, parameter] : named(subject_.module.named_parameters()))
        keep(name, "", parameter, job_.model);
      return {};
    }
    const FlatParameters& flat = subject_.flat();
    for (int u = 0; u < flat.unit_count(); ++u) {
      YOKE_TRY(auto tensors, flat.gather("checkpoint", u, flat.value_shard(u)));
      for (const FlatEntry& entry : flat.entries())
        if (entry.place.unit == u)
          for (const std::string& name : names_of_.at(entry.parameter.unsafeGetTensorImpl()))  // more than one: tied
            keep(name, "", tensors.at(entry.name), job_.model);
    }
    return {};
  }

  Result<void> state(const Updated& updated, torch::optim::OptimizerParamState* state) {
    if (state == nullptr) return {};
    for (const StatePart& part : parts_of(*state)) {
      const std::string suffix = std::string(".") + part.name;
      if (part.tensor != nullptr && !part.tensor->defined()) continue;
      at::Tensor number;
      if (part.number != nullptr) number = at::full({}, *part.number, at::kLong);
      if (subject_.zero() == 0) {
        keep(updated.name, suffix, number.defined() ? number : *part.tensor, job_.optimizer);
        continue;
      }
      std::map<std::string, at::Tensor> tensors;
      if (!number.defined()) {
        YOKE_TRY(tensors, subject_.flat().gather("checkpoint" + suffix, updated.unit, *part.tensor));
      }
      for (const FlatEntry& entry : subject_.flat().entries())
        if (entry.place.unit == updated.unit)
          keep(entry.name, suffix, number.defined() ? number : tensors.at(entry.name), job_.optimizer);
    }
    return {};
  }

  void keep(const std::string& name, const std::string& suffix, const at::Tensor& tensor,
            std::vector<NamedTensor>& list) {
    if (writer_of_.at(name) == rank_) list.push_back(snapshot(name + suffix, tensor));
  }

  const Subject& subject_;
  const int rank_;
  std::map<std::string, int> writer_of_;
  std::map<const void*, std::vector<std::string>> names_of_;
  CheckpointJob job_;
};

// What libtorch threw becomes an error.
template <class Body>
auto caught(const std::string& what, const char* hint, Body&& body) -> decltype(body()) {
  try {
    return body();
  } catch (const std::exception& e) {
    std::string text = e.what();
    return fail(ErrorKind::failed, fmt::format("{}: {}", what, text.substr(0, text.find('\n'))), hint);
  }
}

// The same on all ranks and never used before.
Result<std::string> draw_attempt(Job& job) {
  std::random_device random;
  at::Tensor drawn = at::full({1}, static_cast<std::int64_t>(random()) << 16 ^ random(), at::kLong);
  YOKE_TRY(WorkPtr work, job.communicator().broadcast("the checkpoint's attempt", drawn));
  YOKE_TRY_VOID(work->wait());
  return std::to_string(drawn.item<std::int64_t>());
}

Result<void> save(Job& job, const std::string& root, std::int64_t step, const Subject& subject,
                  const torch::optim::Optimizer* optimizer, const std::string& user_json, std::int64_t keep) {
  // Copies of a bare module are equal, and one rank writes one file.
  const int writers = subject.parallel == nullptr ? 1 : job.size();
  YOKE_TRY(std::string attempt, draw_attempt(job));
  Result<CheckpointJob> collected = caught(fmt::format("step {}: the state cannot be saved", step), "", [&] {
    at::NoGradGuard no_grad;
    return Collector(subject, job.rank(), writers).collect(optimizer);
  });
  const std::string saving = fmt::format("saving step {}", step);
  YOKE_TRY_VOID(job.agree(saving, collected ? Result<void>() : tl::unexpected(collected.error())));
  std::optional<CheckpointWriter> writer;
  Result<void> written;
  if (job.rank() < writers) {
    collected->step = step;
    collected->config_json = "{}";
    collected->state_json = user_json;
    writer.emplace(CheckpointWriter::Options{
        .root = root, .rank = job.rank(), .ranks = writers, .keep = keep, .attempt = attempt});
    written = writer->submit(*std::move(collected));
    if (written && job.rank() > 0) written = writer->finish();
  }
  // Where another rank has failed, rank 0 does not wait for its part.
  YOKE_TRY_VOID(job.agree(saving, written));
  if (job.rank() == 0) written = writer->finish();
  return job.agree(saving, written);
}

// Reads into a subject. `from` is the reader's path, for errors.
class Loader {
 public:
  Loader(const CheckpointReader& reader, const Subject& subject) : reader_(reader), subject_(subject) {}

  Result<void> load(torch::optim::Optimizer* optimizer) {
    YOKE_TRY_VOID(weights());
    if (optimizer == nullptr) return {};
    YOKE_TRY(std::vector<Updated> updated, updated_by(*optimizer, subject_));
    YOKE_TRY_VOID(options(*optimizer));
    for (const Updated& each : updated) {
      auto state = empty_state(*optimizer);
      YOKE_TRY(bool found, load_state(each, *state));
      if (found)
        optimizer->state()[each.tensor.unsafeGetTensorImpl()] = std::move(state);
      else
        optimizer->state().erase(each.tensor.unsafeGetTensorImpl());
    }
    return loss_scale();
  }

 private:
  tl::unexpected<Error> wrong(const std::string& what, const char* hint = "was it written for this module?") const {
    return fail(ErrorKind::failed, fmt::format("{} {}", reader_.path(), what), hint);
  }

  Result<at::Tensor> stored(const TensorView& view, const std::string& name, at::IntArrayRef shape) const {
    YOKE_TRY(at::Tensor values, tensor_from(view, name));
    if (values.sizes().equals(shape)) return values;
    return wrong(
        fmt::format("holds {} in the shape {}, the module's is {}", name, c10::str(values.sizes()), c10::str(shape)));
  }

  // This rank's part of an entry's whole tensor, into a tensor like its unit's shard.
  void cut(const FlatEntry& entry, const at::Tensor& values, const at::Tensor& shard) const {
    const FlatParameters& flat = subject_.flat();
    ShardPart part = part_in_shard(flat.map(), entry.place, flat.groups().shard->rank());
    if (part.numel == 0) return;
    shard.narrow(0, part.at, part.numel).copy_(values.reshape({-1}).narrow(0, part.first, part.numel));
  }

  Result<void> weights() const {
    std::map<const void*, const FlatEntry*> cut_entries;
    if (subject_.zero() == 3)
      for (const FlatEntry& entry : subject_.flat().entries())
        cut_entries[entry.parameter.unsafeGetTensorImpl()] = &entry;
    NamedTensors all = named(subject_.module.named_parameters());
    for (auto& buffer : named(subject_.module.named_buffers())) all.push_back(std::move(buffer));
    for (const auto& [name, tensor] : all) {
      const TensorView* view = reader_.find_model(name);
      if (view == nullptr) return wrong("holds no tensor " + name);
      YOKE_TRY(at::Tensor values, stored(*view, name, tensor.sizes()));
      auto entry = cut_entries.find(tensor.unsafeGetTensorImpl());
      if (entry == cut_entries.end())
        tensor.detach().copy_(values);
      else
        cut(*entry->second, values, subject_.flat().value_shard(entry->second->place.unit));
    }
    if (auto count = reader_.model_names().size(); count != all.size())
      return wrong(fmt::format("holds {} tensors, the module has {}", count, all.size()));
    return {};
  }

  Result<void> options(torch::optim::Optimizer& optimizer) const {
    std::size_t groups = 0;
    while (reader_.find_optimizer(options_name(groups)) != nullptr) ++groups;
    if (groups == 0) return wrong("holds no optimizer state", "load it with a null optimizer");
    if (groups != optimizer.param_groups().size())
      return wrong(fmt::format("holds an optimizer with {} parameter groups, this one has {}", groups,
                               optimizer.param_groups().size()),
                   "is it the same kind of optimizer, on the same parameters?");
    for (std::size_t g = 0; g < groups; ++g) {
      const TensorView* view = reader_.find_optimizer(options_name(g));
      YOKE_TRY_VOID(caught(reader_.path() + ": the optimizer's options", "is it the same kind of optimizer?", [&] {
        torch::serialize::InputArchive archive;
        archive.load_from(reinterpret_cast<const char*>(view->bytes.data()), view->bytes.size());
        optimizer.param_groups()[g].options().serialize(archive);
        return Result<void>();
      }));
    }
    return {};
  }

  // False: the checkpoint has none for this tensor (it was never updated).
  Result<bool> load_state(const Updated& updated, torch::optim::OptimizerParamState& state) const {
    bool found = false;
    for (const StatePart& part : parts_of(state)) {
      if (subject_.zero() == 0) {
        YOKE_TRY(bool one, load_part(updated.name, part, updated.tensor.sizes(), [&](const at::Tensor& values) {
                   *part.tensor = at::empty_like(updated.tensor).copy_(values);
                 }));
        found = found || one;
        continue;
      }
      for (const FlatEntry& entry : subject_.flat().entries()) {
        if (entry.place.unit != updated.unit) continue;
        YOKE_TRY(bool one, load_part(entry.name, part, entry.parameter.sizes(), [&](const at::Tensor& values) {
                   if (!part.tensor->defined()) *part.tensor = at::zeros_like(updated.tensor);
                   cut(entry, values, *part.tensor);
                 }));
        found = found || one;
      }
    }
    return found;
  }

  template <class Take>
  Result<bool> load_part(const std::string& parameter, const StatePart& part, at::IntArrayRef shape,
                         Take&& take) const {
    const std::string name = fmt::format("{}.{}", parameter, part.name);
    const TensorView* view = reader_.find_optimizer(name);
    if (view == nullptr) return false;
    if (part.number != nullptr) {
      YOKE_TRY(at::Tensor number, stored(*view, name, {}));
      *part.number = std::max(*part.number, number.to(at::kLong).item<std::int64_t>());
    } else {
      YOKE_TRY(at::Tensor values, stored(*view, name, shape));
      take(values);
    }
    return true;
  }

  Result<void> loss_scale() const {
    LossScaler* scaler = subject_.parallel == nullptr ? nullptr : subject_.parallel->loss_scaler();
    const TensorView* view = reader_.find_optimizer(loss_scale_name);
    if (scaler == nullptr || view == nullptr) return {};
    YOKE_TRY(at::Tensor saved, stored(*view, loss_scale_name, {2}));
    saved = saved.to(at::kDouble);
    return scaler->restore({saved[0].item<double>(), static_cast<std::int64_t>(saved[1].item<double>())});
  }

  const CheckpointReader& reader_;
  const Subject& subject_;
};

// Rank 0 looks, verifies and tells the others the step: -1 for none. Its own reader is left in `mine`.
Result<std::int64_t> find_newest(Job& job, const std::string& root, std::optional<CheckpointReader>& mine,
                                 std::vector<std::string>& notes) {
  Result<void> looked;
  if (job.rank() == 0) {
    auto newest = newest_complete(root, notes);
    if (newest)
      mine = *std::move(newest);
    else
      looked = tl::unexpected(newest.error());
  }
  YOKE_TRY_VOID(job.agree("looking for a checkpoint in " + root, looked));
  at::Tensor step = at::full({1}, mine ? mine->step() : -1, at::kLong);
  YOKE_TRY(WorkPtr work, job.communicator().broadcast("the checkpoint's step", step));
  YOKE_TRY_VOID(work->wait());
  return step.item<std::int64_t>();
}

Result<ResumedModule> read_step(const std::string& folder, std::optional<CheckpointReader> reader,
                                const Subject& subject, torch::optim::Optimizer* optimizer) {
  if (!reader) {
    auto opened = CheckpointReader::open(folder, /*checksums=*/false);  // rank 0 has verified them
    if (!opened) return tl::unexpected(opened.error());
    reader = *std::move(opened);
  }
  at::NoGradGuard no_grad;
  YOKE_TRY_VOID(caught(folder, "", [&] { return Loader(*reader, subject).load(optimizer); }));
  return ResumedModule{reader->step(), reader->state_json(), {}};
}

Result<ResumedModule> load(Job& job, const std::string& root, const Subject& subject,
                           torch::optim::Optimizer* optimizer) {
  std::optional<CheckpointReader> reader;
  std::vector<std::string> notes;
  YOKE_TRY(std::int64_t step, find_newest(job, root, reader, notes));
  if (step < 0) return ResumedModule{-1, "{}", std::move(notes)};
  std::string folder = root + "/" + step_folder(step);
  auto resumed = read_step(folder, std::move(reader), subject, optimizer);
  YOKE_TRY_VOID(job.agree("loading " + folder, resumed ? Result<void>() : tl::unexpected(resumed.error())));
  if (subject.parallel != nullptr) YOKE_TRY_VOID(subject.parallel->forget_gathered());
  resumed->notes = std::move(notes);
  return resumed;
}

}  // namespace

Result<void> save_module(Job& job, const std::string& root, std::int64_t step, const torch::nn::Module& module,
                         const torch::optim::Optimizer* optimizer, const std::string& user_json, std::int64_t keep) {
  // named_parameters() of a const module hands out the same tensors.
  return save(job, root, step, {const_cast<torch::nn::Module&>(module)}, optimizer, user_json, keep);
}

Result<void> save_module(Job& job, const std::string& root, std::int64_t step, DataParallelModule& module,
                         const torch::optim::Optimizer* optimizer, const std::string& user_json, std::int64_t keep) {
  return save(job, root, step, {module.module(), &module}, optimizer, user_json, keep);
}

Result<ResumedModule> load_module(Job& job, const std::string& root, torch::nn::Module& module,
                                  torch::optim::Optimizer* optimizer) {
  return load(job, root, {module}, optimizer);
}

Result<ResumedModule> load_module(Job& job, const std::string& root, DataParallelModule& module,
                                  torch::optim::Optimizer* optimizer) {
  return load(job, root, {module.module(), &module}, optimizer);
}

}  // namespace yoke
