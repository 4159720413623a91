// The tool: finds the command, runs it, and turns mistakes on the command line into one error with a suggestion.
#include <CLI/CLI.hpp>
#include <algorithm>

#include "apps/yoke/command_line.h"
#include "apps/yoke/commands.h"
#include "apps/yoke/messages.h"

int main(int argc, char** argv) {
  std::vector<std::string> arguments(argv + 1, argv + argc);
  yoke::CommandAction action;
  CLI::App app("Yoke makes many GPUs train as one.", "yoke");
  app.formatter(std::make_shared<yoke::HelpFormatter>());
  app.footer(
      "  yoke run recipes/tiny-cpu.toml               train, on all devices of this machine\n"
      "  yoke launch --nproc-per-node 4 train.py      start your own script on 4 ranks, as torchrun does\n"
      "  yoke report runs/tiny-cpu/latest             what a run did, as a page");
  app.set_version_flag("--version", "yoke " YOKE_VERSION);
  app.require_subcommand(0, 1);
  yoke::add_run_command(app, action);
  yoke::add_launch_command(app, action, arguments);
  yoke::add_report_command(app, action);

  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help, --version
    return yoke::report_error(yoke::usage_error(app, e.what()));
  }
  if (action) return action();
  std::cout << app.help();
  return 2;
}
