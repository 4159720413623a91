// yoke-worker: one rank of a training run (or, with YOKE_THREAD_RANKS, all of them as threads).
//
//   yoke-worker [--run-dir DIR] [SPEC.toml]
//
// `yoke run` starts it with a run folder that holds run.json. torchrun, srun and mpirun can start it with a spec
// instead.
#include <fmt/format.h>

#include <atomic>
#include <csignal>
#include <cstdlib>
#include <mutex>
#include <thread>
#include <vector>

#include "core/base/text.h"
#include "core/plan/plan.h"
#include "core/spec/hf_config.h"
#include "core/spec/run_spec.h"
#include "core/telemetry/step_line.h"
#include "os/environment.h"
#include "os/file.h"
#include "os/memory_limit.h"
#include "train/comm/c10d.h"
#include "train/comm/device.h"
#include "train/comm/memory.h"
#include "train/comm/shared_memory.h"
#include "train/loop/run.h"

namespace yoke {
namespace {

std::atomic<int> stop_signal{0};

int report(const Error& error) {
  fmt::print(stderr, "error: {}\n", error.what);
  if (!error.hint.empty()) fmt::print(stderr, "hint: {}\n", error.hint);
  return exit_code(error.kind);
}

struct Arguments {
  std::string run_dir, spec_file;
};

Result<Arguments> parse_arguments(int argc, char** argv) {
  Arguments arguments;
  if (auto dir = find_variable(current_environment(), "YOKE_RUN_DIR")) arguments.run_dir = *dir;
  for (int i = 1; i < argc; ++i) {
    std::string argument = argv[i];
    if (argument == "--run-dir" && i + 1 < argc)
      arguments.run_dir = argv[++i];
    else if (!argument.starts_with("-") && arguments.spec_file.empty())
      arguments.spec_file = argument;
    else
      return fail(ErrorKind::usage, fmt::format("unknown argument '{}'", argument),
                  "usage: yoke-worker [--run-dir DIR] [SPEC.toml]");
  }
  if (arguments.run_dir.empty() && arguments.spec_file.empty())
    return fail(ErrorKind::usage, "neither a run folder nor a spec was given",
                "usage: yoke-worker [--run-dir DIR] [SPEC.toml]; or start it with yoke run");
  return arguments;
}

Result<RunSpec> read_spec(const Arguments& arguments) {
  ResolvedSpec resolved;
  if (arguments.spec_file.empty()) {
    std::string path = arguments.run_dir + "/run.json";
    YOKE_TRY(std::string text, read_file(path));
    YOKE_TRY(resolved, run_spec_from_json(text, path));
  } else {
    YOKE_TRY(std::string text, read_file(arguments.spec_file));
    Environment environment = current_environment();
    YOKE_TRY(resolved, parse_run_spec({text, arguments.spec_file, {}, {environment.begin(), environment.end()}}));
    if (!resolved.spec.model.path.empty()) {
      std::string path = resolved.spec.model.path + "/config.json";
      YOKE_TRY(std::string config, read_file(path));
      YOKE_TRY(Model shape, model_from_hf_config(config, path));
      YOKE_TRY_VOID(set_model(resolved, shape, path));
    }
  }
  YOKE_TRY_VOID(check_supported(resolved.spec));
  return resolved.spec;
}

// A step line for the log every log_every steps, and everything else that is worth a line.
EventLog::Observer printer(const RunSpec& spec) {
  return [every = spec.train.log_every, steps = spec.train.steps](const Record& record) {
    if (const auto* start = std::get_if<StartEvent>(&record.event)) {
      fmt::print("start: rank {} of {} on {}, {} parameters, from step {}{}\n", record.rank, start->world_size,
                 start->device, format_thousands(start->parameters), start->first_step,
                 start->checkpoint ? " of " + *start->checkpoint : "");
    } else if (const auto* step = std::get_if<StepEvent>(&record.event)) {
      if (step->step % every == 0 || step->step + 1 == steps) fmt::print("{}\n", step_line(*step, steps));
    } else if (const auto* validation = std::get_if<ValidationEvent>(&record.event)) {
      fmt::print("validation: step {}  loss: {:.4f}\n", validation->step + 1, validation->loss);
    } else if (const auto* checkpoint = std::get_if<CheckpointEvent>(&record.event)) {
      fmt::print("checkpoint: {} ({}, {})\n", checkpoint->path, format_bytes(static_cast<double>(checkpoint->bytes)),
                 format_seconds(checkpoint->seconds));
    } else if (const auto* message = std::get_if<MessageEvent>(&record.event); message != nullptr && !message->error) {
      fmt::print(stderr, "warning: {}\n", message->what);
    }
    std::fflush(stdout);
  };
}

double predicted_bytes(const RunSpec& spec, int ranks) {
  auto plan = make_plan(spec, ranks);
  return plan ? plan->memory.total().value : 0;
}

// Exit code of a rank. A stop by signal ends as that signal would have ended it.
int code_of(const Result<RunOutcome>& outcome) {
  if (!outcome) return report(outcome.error());
  return *outcome == RunOutcome::stopped && stop_signal != 0 ? 128 + stop_signal : 0;
}

int run_as_threads(const RunSpec& spec, const std::string& run_dir, int ranks) {
  auto communicators = thread_group("data", ranks, Seconds(spec.train.collective_timeout));
  std::vector<Result<RunOutcome>> outcomes(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  int attempt = 0;
  if (auto world = world_from_environment()) attempt = world->attempt;
  for (int r = 0; r < ranks; ++r)
    threads.emplace_back([&, r] {
      World world{.rank = r, .size = ranks, .local_rank = r, .local_size = ranks, .attempt = attempt};
      RankJob job{.spec = spec,
                  .run_dir = run_dir,
                  .world = world,
                  .observer = r == 0 ? printer(spec) : EventLog::Observer(),
                  .stop_signal = &stop_signal,
                  .predicted_bytes = predicted_bytes(spec, ranks)};
      outcomes[static_cast<std::size_t>(r)] = run_rank(job, *communicators[static_cast<std::size_t>(r)]);
      communicators[static_cast<std::size_t>(r)].reset();
    });
  for (std::thread& thread : threads) thread.join();
  int code = 0;
  for (const auto& outcome : outcomes) code = code != 0 ? code : code_of(outcome);
  return code;
}

int run(int argc, char** argv) {
  auto arguments = parse_arguments(argc, argv);
  if (!arguments) return report(arguments.error());
  auto spec = read_spec(*arguments);
  if (!spec) return report(spec.error());
  for (int signal : {SIGTERM, SIGINT}) std::signal(signal, [](int number) { stop_signal = number; });
  install_counting_allocator();

  if (auto text = find_variable(current_environment(), "YOKE_THREAD_RANKS")) {
    std::optional<std::int64_t> ranks = parse_integer(*text);
    if (!ranks || *ranks < 1 || *ranks > 1024)
      return report(
          {ErrorKind::usage, fmt::format("YOKE_THREAD_RANKS is '{}', not a number from 1 to 1024", *text), ""});
    return run_as_threads(*spec, arguments->run_dir, static_cast<int>(*ranks));
  }
  auto world = world_from_environment();
  if (!world) return report(world.error());
  Seconds timeout(spec->train.collective_timeout);
  auto device = choose_device(spec->cluster.device, world->local_rank);
  if (!device) return report(device.error());
  // Of this machine, not of the rank: once is enough.
  if (!device->note.empty() && world->local_rank == 0) fmt::print(stderr, "note: {}\n", device->note);
  Result<std::unique_ptr<Communicator>> communicator = std::move(thread_group("data", 1, timeout).front());
  if (world->size > 1) communicator = connect(*world, "data", device->transport, timeout);
  if (!communicator) return report(communicator.error());
  RankJob job{*spec,
              arguments->run_dir,
              *world,
              printer(*spec),
              &stop_signal,
              device->device,
              predicted_bytes(*spec, world->size)};
  return code_of(run_rank(job, **communicator));
}

}  // namespace
}  // namespace yoke

int main(int argc, char** argv) {
  int code = 1;
  try {
    code = yoke::run(argc, argv);
  } catch (const std::exception& e) {  // outside of what run_rank() catches
    code = yoke::report(yoke::refusal(e).value_or(yoke::Error{yoke::ErrorKind::failed, e.what(), ""}));
  }
  std::fflush(nullptr);
  // No orderly end: threads of process groups may still let go of tensors while static objects are taken down.
  std::_Exit(code);
}
