#include "apps/yoke/run_setup.h"

#include <algorithm>

#include "core/base/text.h"
#include "core/spec/hf_config.h"
#include "os/devices.h"
#include "os/file.h"

namespace yoke {
namespace {

constexpr int automatic_cpu_ranks = 2;

bool on_gpus(const RunSpec& spec, int gpus) {
  return spec.cluster.device == DeviceKind::cuda || (spec.cluster.device == DeviceKind::automatic && gpus > 0);
}

}  // namespace

Result<RunSetup> prepare_run(ResolvedSpec resolved, int cores, int gpus) {
  RunSpec& spec = resolved.spec;
  YOKE_TRY_VOID(check_supported(spec));
  if (spec.cluster.per_node == 0) {
    const ParallelSpec& p = spec.parallel;
    bool gpu = on_gpus(spec, gpus);
    std::string origin;
    if (!p.automatic) {
      spec.cluster.per_node = p.data * p.tensor * p.pipeline * p.context * p.expert;
      origin = "auto: the sizes in [parallel]";
    } else {
      YOKE_TRY_VOID(check_devices(spec, gpus));  // without GPUs there is nothing to count
      spec.cluster.per_node = gpu ? gpus : std::min(automatic_cpu_ranks, cores);
      origin = gpu ? fmt::format("auto: {} GPUs", gpus) : fmt::format("auto: {} cores", cores);
    }
    resolved.origins["cluster.per_node"] = origin;
  }
  RunSetup setup;
  setup.ranks = spec.cluster.per_node * spec.cluster.nodes;
  YOKE_TRY(setup.plan, make_plan(spec, setup.ranks));
  setup.resolved = std::move(resolved);
  return setup;
}

Result<void> check_devices(const RunSpec& spec, int gpus) {
  if (spec.cluster.device == DeviceKind::cuda && gpus == 0) {
    return fail(ErrorKind::environment, "cluster.device is \"cuda\", but this machine has no visible NVIDIA GPU",
                "choose device = \"cpu\", or look at CUDA_VISIBLE_DEVICES; a plan for another machine needs "
                "cluster.per_node");
  }
  return {};
}

Result<void> check_memory(const RunSetup& setup, bool on_cpu, const std::optional<MemoryLimit>& together,
                          const std::optional<MemoryLimit>& each) {
  if (!on_cpu) return {};
  const RunSpec& spec = setup.resolved.spec;
  const auto here = static_cast<double>(spec.cluster.per_node);
  const double processes = spec.cluster.mode == ClusterMode::threads ? 1 : here;
  auto states = [](const Plan& plan) {
    return (plan.memory.parameters + plan.memory.gradients + plan.memory.optimizer).value;
  };
  // The limit that so many bytes a rank break.
  auto broken = [&](double rank) -> const std::optional<MemoryLimit>& {
    static const std::optional<MemoryLimit> none;
    if (each && rank * here / processes > each->bytes.value) return each;
    return together && rank * here > together->bytes.value ? together : none;
  };
  const double needed = states(setup.plan);
  const std::optional<MemoryLimit>& limit = broken(needed);
  if (!limit) return {};
  std::vector<std::string> ways;
  auto try_way = [&](const std::string& keys, const RunSpec& other) {
    auto plan = make_plan(other, setup.ranks);
    if (plan && !broken(states(*plan))) ways.push_back(keys + " needs " + format_bytes(states(*plan)) + " a rank");
  };
  for (int zero = spec.parallel.zero + 1; zero <= 3; ++zero) {
    RunSpec other = spec;
    other.parallel.zero = zero;
    try_way(fmt::format("parallel.zero = {}", zero), other);
  }
  RunSpec other = spec;
  other.offload.optimizer = Offload::file;
  try_way("offload.optimizer = \"file\"", other);
  if (ways.empty()) {
    other.parallel.zero = 3;
    other.offload.parameters = Offload::file;
    try_way("parallel.zero = 3 with offload.optimizer and offload.parameters = \"file\"", other);
  }
  std::string hint = ways.empty()
                         ? "no ZeRO stage and no offload fits: use more ranks on more machines, or a smaller model"
                         : "these fit, activations not counted: " + join(ways, "; ");
  return fail(
      ErrorKind::failed,
      fmt::format("parameters, gradients and optimizer state need {} a rank, {} for the {} ranks here, but {} is {}",
                  format_bytes(needed), format_bytes(needed * here), spec.cluster.per_node, limit->what,
                  format_bytes(limit->bytes.value)),
      hint);
}

Result<RunSetup> read_new_run(const std::string& file, const std::vector<std::string>& sets,
                              const Environment& environment) {
  YOKE_TRY(std::string text, read_file(file));
  YOKE_TRY(ResolvedSpec resolved, parse_run_spec({text, file, sets, {environment.begin(), environment.end()}}));
  if (!resolved.spec.model.path.empty()) {
    std::string config_file = resolved.spec.model.path + "/config.json";
    YOKE_TRY(std::string config, read_file(config_file));
    YOKE_TRY(Model shape, model_from_hf_config(config, config_file));
    YOKE_TRY_VOID(set_model(resolved, shape, config_file));
  }
  return prepare_run(std::move(resolved), usable_cores(), visible_gpus(environment));
}

Result<RunSetup> read_existing_run(const std::string& run_dir, const Environment& environment) {
  std::string file = run_dir + "/run.json";
  YOKE_TRY(std::string text, read_file(file));
  YOKE_TRY(ResolvedSpec resolved, run_spec_from_json(text, file));
  return prepare_run(std::move(resolved), usable_cores(), visible_gpus(environment));
}

std::string describe(const RunSetup& setup) {
  const RunSpec& spec = setup.resolved.spec;
  const Model& model = spec.model.shape;
  const Layout& layout = setup.plan.layout;
  const MemoryPrediction& memory = setup.plan.memory;
  std::vector<std::string> sizes;
  for (auto [axis, size] : {std::pair{"data", layout.data},
                            {"tensor", layout.tensor},
                            {"pipeline", layout.pipeline},
                            {"context", layout.context},
                            {"expert", layout.expert}}) {
    if (size > 1) sizes.push_back(fmt::format("{} {}", axis, size));
  }
  std::string text;
  auto row = [&](const char* name, const std::string& value) { text += fmt::format("{:<10} {}\n", name, value); };
  row("run", spec.name);
  row("model", fmt::format("{}, {} parameters: {} layers, hidden {}, {} heads, vocabulary {}", name(model.family),
                           format_count(static_cast<double>(setup.plan.parameters)), model.layers, model.hidden,
                           model.heads, format_thousands(model.vocab)));
  row("ranks", fmt::format("{} ({})", setup.ranks, setup.ranks == 1 ? "nothing is split" : join(sizes, ", ")));
  row("batch", fmt::format("{} sequences of {} tokens a step, {} at a time", spec.train.global_batch,
                           spec.data.sequence, layout.micro_batch));
  row("training",
      fmt::format("{} steps, {}, recompute {}", spec.train.steps, name(layout.precision), name(layout.recompute)));
  auto part = [](Bytes b) { return format_bytes(b.value); };
  row("memory",
      fmt::format("{} a rank, predicted: parameters {}, gradients {}, optimizer {}, activations {}, communication {}, "
                  "checkpoint {}{}",
                  part(memory.total()), part(memory.parameters), part(memory.gradients), part(memory.optimizer),
                  part(memory.activations), part(memory.communication), part(memory.checkpoint),
                  memory.checkpoint_in_training ? "" : " (at the end)"));
  return text;
}

}  // namespace yoke
