// yoke launch: anybody's program on the ranks of this node, with torchrun's flags.
#include <CLI/CLI.hpp>
#include <cstdlib>
#include <filesystem>

#include "apps/yoke/commands.h"
#include "apps/yoke/launch_console.h"
#include "apps/yoke/launch_flags.h"
#include "apps/yoke/messages.h"
#include "core/base/text.h"
#include "os/devices.h"

namespace yoke {
namespace {

struct LaunchFlags {
  std::string ranks = "1", nodes = "1", redirects = "0", tee = "0", filter, log_dir, role = "default", run_id;
  std::string master_address = "127.0.0.1";
  int master_port = 0, node_rank = 0, max_restarts = 0;
  double shutdown_timeout = 30;
  bool standalone = false, no_python = false;
  Program program;
};

// LaunchFlags of torchrun for which one node has no use.
constexpr const char* unneeded[] = {"--rdzv-backend", "--rdzv-endpoint", "--rdzv-conf", "--local-addr"};
constexpr const char* harmless[] = {"--monitor-interval", "--start-method"};

// Cuts the program off the arguments, so that its own flags are not read as ours. With underscores in ours made dashes.
void take_program(const CLI::App& command, std::vector<std::string>& arguments, Program& program) {
  for (std::size_t i = 1; i < arguments.size(); ++i) {
    std::string& word = arguments[i];
    bool flag = word.size() > 1 && word[0] == '-' && word != "--";
    if (!flag) {
      program.direct = word == "--";
      program.words.assign(arguments.begin() + static_cast<std::ptrdiff_t>(i) + (program.direct ? 1 : 0),
                           arguments.end());
      arguments.resize(i);
      return;
    }
    std::size_t name_end = std::min(word.find('='), word.size());
    if (word.starts_with("--"))
      std::replace(word.begin(), word.begin() + static_cast<std::ptrdiff_t>(name_end), '_', '-');
    bool has_value = name_end < word.size() || (!word.starts_with("--") && word.size() > 2);
    const CLI::Option* option = command.get_option_no_throw(word.substr(0, name_end));
    if (option != nullptr && option->get_items_expected_min() > 0 && !has_value) ++i;
  }
}

// Where the log files go when they are asked for without a place.
Result<std::string> temporary_log_dir() {
  std::error_code ignored;
  std::string path = (std::filesystem::temp_directory_path(ignored) / "yoke-logs-XXXXXX").string();
  if (::mkdtemp(path.data()) == nullptr) return fail(ErrorKind::environment, fmt::format("cannot make {}", path));
  return path;
}

Result<int> run(LaunchFlags flags) {
  if (flags.program.words.empty()) {
    return fail(ErrorKind::usage, "no program to launch",
                "yoke launch --nproc-per-node 2 train.py, or yoke launch -- program");
  }
  YOKE_TRY_VOID(check_nodes(flags.nodes));
  if (flags.node_rank != 0) {
    return fail(ErrorKind::usage, fmt::format("--node-rank is {}, but there is one node", flags.node_rank),
                "use --node-rank 0");
  }
  LaunchOptions options;
  options.environment = current_environment();
  YOKE_TRY(options.ranks, resolve_ranks(flags.ranks, usable_cores(), visible_gpus(options.environment)));
  YOKE_TRY(std::vector<int> redirects, resolve_streams(flags.redirects, options.ranks, "--redirects"));
  YOKE_TRY(std::vector<int> tee, resolve_streams(flags.tee, options.ranks, "--tee"));
  YOKE_TRY(std::vector<bool> filter, resolve_rank_filter(flags.filter, options.ranks));
  std::vector<int> shown;
  bool files = !flags.log_dir.empty();
  for (std::size_t rank = 0; rank < redirects.size(); ++rank) {
    shown.push_back(filter[rank] ? (3 & ~redirects[rank]) | tee[rank] : 0);
    files = files || redirects[rank] != 0 || tee[rank] != 0;
  }
  if (files && flags.log_dir.empty()) {
    YOKE_TRY(flags.log_dir, temporary_log_dir());
    note("the ranks' logs are in " + flags.log_dir);
  }
  flags.program.direct = flags.program.direct || flags.no_python;
  options.command = rank_command(flags.program, find_variable(options.environment, "PYTHON_EXEC").value_or("python3"));
  options.master_address = flags.master_address;
  options.master_port = flags.master_port;
  options.max_restarts = flags.max_restarts;
  options.role = flags.role;
  options.run_id = flags.standalone ? "" : flags.run_id.empty() ? "none" : flags.run_id;
  options.log_dir = flags.log_dir;
  options.grace = {flags.shutdown_timeout, flags.shutdown_timeout};

  LaunchConsole console(std::move(shown), options.max_restarts);
  YOKE_TRY(LaunchOutcome outcome, launch(options, console));
  report_outcome(outcome, options.log_dir);
  return outcome.exit_code;
}

void note_unneeded(const CLI::App& command) {
  std::vector<std::string> given;
  for (const char* name : unneeded) {
    if (command.get_option(name)->count() > 0) given.emplace_back(name);
  }
  if (!given.empty()) note(join(given, ", ") + ": not needed on one node");
}

}  // namespace

void add_launch_command(CLI::App& app, CommandAction& action, std::vector<std::string>& arguments) {
  auto flags = std::make_shared<LaunchFlags>();
  CLI::App* command =
      app.add_subcommand("launch", "Start your own program on all devices of this machine (torchrun's flags)");
  command->footer(
      "  yoke launch --nproc-per-node 4 train.py --lr 0.1    a Python script, as torchrun starts it\n"
      "  yoke launch --nproc-per-node gpu -m my.module       a Python module, one rank for each GPU\n"
      "  yoke launch --nproc-per-node 2 -- ./my-program      any program\n"
      "  yoke launch --max-restarts 3 --log-dir logs train.py");
  auto add = [&](const char* names, auto& value, const char* variable, const char* meaning) {
    return command->add_option(names, value, meaning)->envname(variable)->capture_default_str();
  };
  auto add_switch = [&](const char* names, bool& value, const char* variable, const char* meaning) {
    command->add_flag(names, value, meaning)->envname(variable);
  };
  add("--nproc-per-node", flags->ranks, "PET_NPROC_PER_NODE", "Ranks: a number, auto, cpu or gpu");
  add("--nnodes", flags->nodes, "PET_NNODES", "Nodes: only 1");
  add("--node-rank", flags->node_rank, "PET_NODE_RANK", "Only 0");
  add_switch("--standalone", flags->standalone, "PET_STANDALONE", "One node, a run id of its own");
  add("--max-restarts", flags->max_restarts, "PET_MAX_RESTARTS", "Restarts of all ranks when one fails")
      ->check(CLI::NonNegativeNumber);
  add("--master-addr", flags->master_address, "PET_MASTER_ADDR", "MASTER_ADDR of the ranks");
  add("--master-port", flags->master_port, "PET_MASTER_PORT", "MASTER_PORT of the ranks; 0: a free one")
      ->check(CLI::Range(0, 65535));
  add("--role", flags->role, "PET_ROLE", "ROLE_NAME of the ranks");
  add("--rdzv-id", flags->run_id, "PET_RDZV_ID", "TORCHELASTIC_RUN_ID of the ranks");
  add("--log-dir", flags->log_dir, "PET_LOG_DIR", "Folder for rank-00000.log, ...; without it no files are written");
  add("-r,--redirects", flags->redirects, "PET_REDIRECTS",
      "Into the log only: 0 none, 1 stdout, 2 stderr, 3 both, or 0:1,1:2");
  add("-t,--tee", flags->tee, "PET_TEE", "Into the log and to the terminal, written in the same way");
  add("--local-ranks-filter", flags->filter, "PET_LOCAL_RANKS_FILTER", "Ranks that the terminal shows: 0,2");
  add("--shutdown-timeout", flags->shutdown_timeout, "PET_SHUTDOWN_TIMEOUT", "Seconds from SIGTERM to SIGKILL")
      ->check(CLI::NonNegativeNumber);
  add_switch("-m,--module", flags->program.module, "PET_MODULE", "The program is a Python module");
  add_switch("--no-python", flags->no_python, "PET_NO_PYTHON", "Run the program itself, even if it ends in .py");
  static std::string ignored;
  for (const char* name : unneeded) command->add_option(name, ignored, "Accepted; one node does not need it");
  for (const char* name : harmless) command->add_option(name, ignored, "Accepted; has no effect");

  if (!arguments.empty() && arguments.front() == "launch") take_program(*command, arguments, flags->program);
  command->callback([flags, command, &action] {
    action = [flags, command] {
      note_unneeded(*command);
      const char* timeout = std::getenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT");
      auto seconds = timeout != nullptr ? parse_number(timeout) : std::nullopt;
      if (seconds && command->get_option("--shutdown-timeout")->count() == 0) flags->shutdown_timeout = *seconds;
      Result<int> code = run(*flags);
      return code ? *code : report_error(code.error());
    };
  });
}

}  // namespace yoke
