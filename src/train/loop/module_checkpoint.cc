#include "train/loop/module_checkpoint.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>
#include <torch/serialize/archive.h>
#include <unistd.h>

#include <sstream>

#include "os/clock.h"
#include "train/checkpoint/checkpoint_reader.h"
#include "train/checkpoint/checkpoint_writer.h"
#include "train/loop/tensors.h"

namespace yoke {
namespace {

constexpr const char* optimizer_tensor = "torch_optimizer";  // libtorch's own archive of its state, as bytes

// Parameters and buffers in one list.
std::vector<std::pair<std::string, at::Tensor>> state_of(const torch::nn::Module& module) {
  std::vector<std::pair<std::string, at::Tensor>> state;
  for (const auto& item : module.named_parameters()) state.emplace_back(item.key(), item.value());
  for (const auto& item : module.named_buffers()) state.emplace_back(item.key(), item.value());
  return state;
}

NamedTensor optimizer_bytes(const torch::optim::Optimizer& optimizer) {
  torch::serialize::OutputArchive archive;
  optimizer.save(archive);
  std::ostringstream stream;
  archive.save_to(stream);
  auto bytes = std::make_shared<std::string>(std::move(stream).str());
  NamedTensor named;
  named.name = optimizer_tensor;
  named.view = {DType::u8, {static_cast<std::int64_t>(bytes->size())}, std::as_bytes(std::span<const char>(*bytes))};
  named.owner = std::move(bytes);
  return named;
}

Result<void> write(const std::string& root, std::int64_t step, const torch::nn::Module& module,
                   const torch::optim::Optimizer* optimizer, const std::string& user_json, std::int64_t keep) {
  CheckpointJob job;
  job.step = step;
  job.config_json = "{}";
  job.state_json = user_json;
  try {
    for (const auto& [name, tensor] : state_of(module)) job.model.push_back(snapshot(name, tensor));
    if (optimizer != nullptr) job.optimizer.push_back(optimizer_bytes(*optimizer));
  } catch (const std::exception& e) {
    return fail(ErrorKind::failed, fmt::format("step {}: the state cannot be written: {}", step, e.what()));
  }
  CheckpointWriter::Options options;
  options.root = root;
  options.keep = keep;
  options.attempt = fmt::format("{}-{}", getpid(), unix_ns());
  CheckpointWriter writer(options);
  YOKE_TRY_VOID(writer.submit(std::move(job)));
  return writer.finish();
}

Result<void> read(const CheckpointReader& reader, torch::nn::Module& module, torch::optim::Optimizer* optimizer) {
  at::NoGradGuard no_grad;
  auto state = state_of(module);
  for (const auto& [name, tensor] : state) {
    const TensorView* view = reader.find_model(name);
    if (view == nullptr)
      return fail(ErrorKind::failed, fmt::format("{} holds no tensor {}", reader.path(), name),
                  "was it written for this module?");
    YOKE_TRY(at::Tensor values, tensor_from(*view, name));
    if (!values.sizes().equals(tensor.sizes()))
      return fail(ErrorKind::failed,
                  fmt::format("{}: {} has the shape {}, the module's is {}", reader.path(), name,
                              c10::str(values.sizes()), c10::str(tensor.sizes())),
                  "was it written for this module?");
    tensor.detach().copy_(values);
  }
  if (auto count = reader.model_names().size(); count != state.size())
    return fail(ErrorKind::failed,
                fmt::format("{} holds {} tensors, the module has {}", reader.path(), count, state.size()),
                "was it written for this module?");
  if (optimizer == nullptr) return {};
  const TensorView* view = reader.find_optimizer(optimizer_tensor);
  if (view == nullptr)
    return fail(ErrorKind::failed, fmt::format("{} holds no optimizer state", reader.path()),
                "load it with a null optimizer");
  try {
    torch::serialize::InputArchive archive;
    archive.load_from(reinterpret_cast<const char*>(view->bytes.data()), view->bytes.size());
    optimizer->load(archive);
  } catch (const std::exception& e) {
    std::string text = e.what();
    return fail(ErrorKind::failed,
                fmt::format("{}: the optimizer's state: {}", reader.path(), text.substr(0, text.find('\n'))),
                "is it the same kind of optimizer, on the same parameters?");
  }
  return {};
}

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
                                torch::nn::Module& module, torch::optim::Optimizer* optimizer) {
  if (!reader) {
    auto opened = CheckpointReader::open(folder, /*checksums=*/false);  // rank 0 has verified them
    if (!opened) return tl::unexpected(opened.error());
    reader = *std::move(opened);
  }
  YOKE_TRY_VOID(read(*reader, module, optimizer));
  return ResumedModule{reader->step(), reader->state_json(), {}};
}

}  // namespace

Result<void> save_module(Job& job, const std::string& root, std::int64_t step, const torch::nn::Module& module,
                         const torch::optim::Optimizer* optimizer, const std::string& user_json, std::int64_t keep) {
  Result<void> written;
  if (job.rank() == 0) written = write(root, step, module, optimizer, user_json, keep);
  return job.agree(fmt::format("saving step {}", step), written);
}

Result<ResumedModule> load_module(Job& job, const std::string& root, torch::nn::Module& module,
                                  torch::optim::Optimizer* optimizer) {
  std::optional<CheckpointReader> reader;
  std::vector<std::string> notes;
  YOKE_TRY(std::int64_t step, find_newest(job, root, reader, notes));
  if (step < 0) return ResumedModule{-1, "{}", std::move(notes)};
  std::string folder = root + "/" + step_folder(step);
  auto resumed = read_step(folder, std::move(reader), module, optimizer);
  Result<void> outcome;
  if (!resumed) outcome = tl::unexpected(resumed.error());
  YOKE_TRY_VOID(job.agree("loading " + folder, outcome));
  resumed->notes = std::move(notes);
  return resumed;
}

}  // namespace yoke
