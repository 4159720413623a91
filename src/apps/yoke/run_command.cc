// yoke run: from a spec to a trained model, through failures.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/yoke/commands.h"
#include "apps/yoke/launch_console.h"
#include "apps/yoke/messages.h"
#include "apps/yoke/report_files.h"
#include "apps/yoke/run_folder.h"
#include "apps/yoke/run_progress.h"
#include "apps/yoke/run_setup.h"
#include "os/devices.h"
#include "os/file.h"

namespace yoke {
namespace {

constexpr double peers_grace = 5;  // seconds; without the rank that failed there is nothing that the others could save

struct RunFlags {
  std::string file, resume, runs_dir = "runs";
  std::vector<std::string> sets;
  bool dry_run = false, json = false, quiet = false;
};

Result<std::string> find_worker() {
  std::error_code problem;
  std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", problem).parent_path() / "yoke-worker";
  if (!problem && std::filesystem::exists(path, problem)) return path.string();
  return fail(ErrorKind::environment, fmt::format("{} is not there: this build has no engine", path.string()),
              "make build");
}

void print_dry_run(const RunSetup& setup, bool json) {
  if (!json) {
    fmt::print("{}", describe(setup));
    return;
  }
  nlohmann::ordered_json both{{"schema", 1},
                              {"run", nlohmann::ordered_json::parse(to_json(setup.resolved))},
                              {"plan", nlohmann::ordered_json::parse(plan_to_json(setup.plan))}};
  fmt::print("{}\n", both.dump(2));
}

LaunchOptions launch_options(const RunSetup& setup, const std::string& worker, const std::string& run_dir) {
  const RunSpec& spec = setup.resolved.spec;
  LaunchOptions options;
  options.command = {worker, "--run-dir", run_dir};
  options.environment = current_environment();
  if (spec.cluster.mode == ClusterMode::threads) {
    options.environment["YOKE_THREAD_RANKS"] = std::to_string(setup.ranks);
  } else {
    options.environment.erase("YOKE_THREAD_RANKS");
    options.ranks = static_cast<int>(setup.ranks);
  }
  options.max_restarts = static_cast<int>(spec.restart.max);
  options.final_codes = {exit_code(ErrorKind::usage), exit_code(ErrorKind::environment)};
  options.environment.try_emplace("TORCH_CPP_LOG_LEVEL",
                                  "ERROR");  // else each lost peer costs pages of libtorch's own stack frames
  options.run_dir = run_dir;
  options.log_dir = run_dir + "/logs";
  options.grace = {spec.restart.grace, std::min(peers_grace, spec.restart.grace)};
  return options;
}

Result<int> run(const RunFlags& flags) {
  Environment environment = current_environment();
  YOKE_TRY(RunSetup setup, flags.resume.empty() ? read_new_run(flags.file, flags.sets, environment)
                                                : read_existing_run(flags.resume, environment));
  if (flags.dry_run) {
    print_dry_run(setup, flags.json);
    return 0;
  }
  const RunSpec& spec = setup.resolved.spec;
  YOKE_TRY_VOID(check_devices(spec, visible_gpus(environment)));
  bool on_cpu = spec.cluster.device == DeviceKind::cpu || visible_gpus(environment) == 0;
  YOKE_TRY_VOID(check_memory(setup, on_cpu, shared_memory_limit(), process_memory_limit()));
  YOKE_TRY(std::string worker, find_worker());
  std::string run_dir = flags.resume;
  if (run_dir.empty()) {
    YOKE_TRY(run_dir, make_run_folder(flags.runs_dir, spec.name));
    YOKE_TRY_VOID(write_file_atomically(run_dir + "/run.json", to_json(setup.resolved)));
  }
  run_dir = std::filesystem::canonical(run_dir).string();  // through "latest", which may move on
  YOKE_TRY_VOID(write_file_atomically(run_dir + "/plan.json", plan_to_json(setup.plan)));

  if (!flags.quiet) fmt::print(stderr, "{}{:<10} {}\n", describe(setup), "folder", run_dir);
  LaunchOptions options = launch_options(setup, worker, run_dir);
  RunProgress progress({.run_dir = run_dir,
                        .resume = spec.checkpoint.resume,
                        .total_steps = spec.train.steps,
                        .max_restarts = options.max_restarts,
                        .quiet = flags.quiet,
                        .terminal = is_terminal(STDERR_FILENO)});
  if (!flags.resume.empty()) progress.on_resume();
  Result<LaunchOutcome> outcome = launch(options, progress);
  progress.finish();
  if (!outcome) return report_error(outcome.error());

  Result<std::string> summary = write_report(run_dir);
  if (!summary) {
    int code = report_error(summary.error());
    if (outcome->exit_code == 0) return code;
  } else if (flags.json) {
    YOKE_TRY(std::string json, read_file(run_dir + "/report.json"));
    fmt::print("{}\n", json);
  } else {
    fmt::print("{}", *summary);
  }
  std::fflush(stdout);
  bool failed = outcome->stop_signal == 0 && outcome->cause;
  if (std::optional<Error> own = failed ? worker_error(*outcome->cause) : std::nullopt)
    report_error(*own);
  else
    report_outcome(*outcome, options.log_dir);
  return outcome->exit_code;
}

}  // namespace

void add_run_command(CLI::App& app, CommandAction& action) {
  auto flags = std::make_shared<RunFlags>();
  CLI::App* command = app.add_subcommand("run", "Train a model on all devices of this machine, through failures");
  command->footer(
      "  yoke run recipes/tiny-cpu.toml\n"
      "  yoke run recipes/tiny-cpu.toml --set train.steps=50 --set cluster.per_node=1\n"
      "  yoke run recipes/tiny-cpu.toml --dry-run       what would run, and the memory that it would need\n"
      "  yoke run --resume runs/tiny-cpu/latest         go on with a run that was stopped");
  CLI::Option* spec = command->add_option("SPEC", flags->file, "The run spec, a TOML file");
  CLI::Option* resume = command->add_option("--resume", flags->resume, "Go on with the run in this folder")
                            ->check(CLI::ExistingDirectory);
  CLI::Option* set =
      command->add_option("--set", flags->sets, "KEY=VALUE: overrides a key of the spec")->type_name("KEY=VALUE");
  set->expected(1)->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  CLI::Option* runs =
      command->add_option("--runs-dir", flags->runs_dir, "Where run folders are made")->capture_default_str();
  for (CLI::Option* other : {spec, set, runs}) resume->excludes(other);
  command->add_flag("--dry-run", flags->dry_run, "Print the resolved plan and stop");
  command->add_flag("--json", flags->json, "The answer (plan or report) as JSON");
  command->add_flag("--quiet,-q", flags->quiet, "No progress");
  command->callback([flags, &action] {
    if (flags->file.empty() && flags->resume.empty()) throw CLI::RequiredError("SPEC (or --resume)");
    action = [flags] {
      Result<int> code = run(*flags);
      return code ? *code : report_error(code.error());
    };
  });
}

}  // namespace yoke
