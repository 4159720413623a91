// yoke report: what a run did, as a page, as JSON and as a few lines.
#include <CLI/CLI.hpp>
#include <filesystem>

#include "apps/yoke/commands.h"
#include "apps/yoke/messages.h"
#include "apps/yoke/report_files.h"
#include "os/file.h"

namespace yoke {
namespace {

struct ReportFlags {
  std::string run;
  bool json = false, open_path = false;
};

// What to print.
Result<std::string> report(const ReportFlags& flags) {
  YOKE_TRY(std::string folder, find_run_dir(flags.run));
  YOKE_TRY(std::string summary, write_report(folder));
  if (flags.json) return read_file(folder + "/report.json");
  if (!flags.open_path) return summary;
  std::error_code error;
  std::filesystem::path path = std::filesystem::absolute(folder + "/report.html", error);
  if (error) return fail(ErrorKind::environment, fmt::format("the current folder is gone: {}", error.message()));
  return path.string() + "\n";
}

}  // namespace

void add_report_command(CLI::App& app, CommandAction& action) {
  auto flags = std::make_shared<ReportFlags>();
  CLI::App* command = app.add_subcommand("report", "Show what a run did: writes report.html and report.json into it.");
  command->footer(
      "  yoke report runs/tiny-cpu                             the newest run of that name, in a few lines\n"
      "  yoke report runs/tiny-cpu --json                      the same for programs\n"
      "  xdg-open \"$(yoke report runs/tiny-cpu --open-path)\"   the page, in a browser");
  command->add_option("RUN", flags->run, "a run folder, or runs/NAME for the newest of that name")->required();
  CLI::Option* json = command->add_flag("--json", flags->json, "print report.json");
  command->add_flag("--open-path", flags->open_path, "print only where report.html is")->excludes(json);
  command->callback([flags, &action] {
    action = [flags] {
      Result<std::string> text = report(*flags);
      if (!text) return report_error(text.error());
      std::cout << *text;
      return 0;
    };
  });
}

}  // namespace yoke
