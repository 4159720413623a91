#include "apps/yoke/command_line.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "apps/yoke/commands.h"
#include "apps/yoke/messages.h"
#include "core/base/error.h"
#include "core/base/text.h"

namespace yoke {
namespace {

// The footer of a command holds its examples, which come first.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override {
    std::string rest = CLI::Formatter::make_help(app, std::move(name), mode);
    if (mode != CLI::AppFormatMode::Normal || app->get_footer().empty()) return rest;
    return "Examples:\n" + app->get_footer() + "\n\n" + rest;
  }
  std::string make_footer(const CLI::App*) const override { return ""; }
};

// The error (usage) for arguments that could not be parsed: names the one that is wrong and what it may have meant.
Error usage_error(const CLI::App& app, const std::string& what) {
  std::vector<CLI::App*> chosen = app.get_subcommands();
  const CLI::App& command = chosen.empty() ? app : *chosen.front();
  std::string help = fmt::format("see {} --help", chosen.empty() ? "yoke" : "yoke " + command.get_name());
  std::vector<std::string> unknown = app.remaining(true);
  if (unknown.empty()) return {ErrorKind::usage, what, help};

  std::string word = unknown.front().substr(0, unknown.front().find('='));
  bool flag = word.starts_with("-");
  std::vector<std::string> candidates;
  if (flag) {
    for (const CLI::Option* option : command.get_options()) {
      for (const std::string& name : option->get_lnames()) candidates.push_back("--" + name);
    }
  } else if (chosen.empty()) {
    for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
      candidates.push_back(sub->get_name());
    }
  }
  std::string kind = flag ? "flag" : chosen.empty() ? "command" : "argument";
  auto meant = did_you_mean(word, candidates);
  return {ErrorKind::usage, fmt::format("unknown {} {}", kind, word),
          meant ? fmt::format("did you mean {}?", *meant) : help};
}

}  // namespace

int run_command_line(std::vector<std::string> arguments) {
  CommandAction action;
  CLI::App app("Yoke makes many GPUs train as one.", "yoke");
  app.formatter(std::make_shared<HelpFormatter>());
  app.footer(
      "  yoke run recipes/tiny-cpu.toml               train, on all devices of this machine\n"
      "  yoke launch --nproc-per-node 4 train.py      start your own script on 4 ranks, as torchrun does\n"
      "  yoke report runs/tiny-cpu/latest             what a run did, as a page");
  app.set_version_flag("--version", "yoke " YOKE_VERSION);
  app.require_subcommand(0, 1);
  add_run_command(app, action);
  add_launch_command(app, action, arguments);
  add_report_command(app, action);

  std::reverse(arguments.begin(), arguments.end());  // as CLI11 wants them
  try {
    app.parse(arguments);
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() == 0) return app.exit(e);  // --help, --version
    return report_error(usage_error(app, e.what()));
  }
  if (action) return action();
  std::cout << app.help();
  return 2;
}

}  // namespace yoke
