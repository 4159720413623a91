// The commands of `yoke`. Each adds itself to the table of flags and, if it is the one that was asked for, sets the
// action, which does the work, talks to the user and returns the exit code (DESIGN 6).
#pragma once

#include <functional>
#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace yoke {

using CommandAction = std::function<int()>;

// Takes the user's program out of the arguments, if they are of this command: what follows the program's name is not
// ours.
void add_launch_command(CLI::App& app, CommandAction& action, std::vector<std::string>& arguments);
void add_run_command(CLI::App& app, CommandAction& action);
void add_report_command(CLI::App& app, CommandAction& action);

}  // namespace yoke
