#include "apps/yoke/command_line.h"

#include <fmt/format.h>

#include "core/base/text.h"

namespace yoke {

std::string HelpFormatter::make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const {
  std::string rest = CLI::Formatter::make_help(app, std::move(name), mode);
  if (mode != CLI::AppFormatMode::Normal || app->get_footer().empty()) return rest;
  return "Examples:\n" + app->get_footer() + "\n\n" + rest;
}

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

}  // namespace yoke
