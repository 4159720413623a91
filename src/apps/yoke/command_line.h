// The command line of `yoke`: finds the command and runs it; help opens with examples, and a mistake is one error with
// "did you mean".
#pragma once

#include <string>
#include <vector>

namespace yoke {

// `arguments` without the program's name. Prints, and returns the exit code.
int run_command_line(std::vector<std::string> arguments);

}  // namespace yoke
