// The folder of one run: runs/<name>/<time>/ (DESIGN 3.3).
#pragma once

#include <string>

#include "core/base/result.h"

namespace yoke {

// Makes a new one with its subfolders, and points runs/<name>/latest at it. Returns its path.
Result<std::string> make_run_folder(const std::string& runs_dir, const std::string& name);

}  // namespace yoke
