#include "apps/yoke/run_folder.h"

#include <algorithm>
#include <filesystem>

#include "os/clock.h"

namespace yoke {
namespace fs = std::filesystem;

Result<std::string> make_run_folder(const std::string& runs_dir, const std::string& name) {
  auto failed = [](const fs::path& path, const std::error_code& problem) {
    return fail(ErrorKind::environment, fmt::format("{}: {}", path.string(), problem.message()),
                "choose another place with --runs-dir");
  };
  std::error_code problem;
  fs::path parent = fs::path(runs_dir) / name;
  fs::create_directories(parent, problem);
  if (problem) return failed(parent, problem);

  std::string time = utc_text(unix_ns());
  std::erase(time, ':');  // tar, scp and Windows read it as a host or a drive
  fs::path folder = parent / time;
  for (int i = 2; !fs::create_directory(folder, problem); ++i) {
    if (problem) return failed(folder, problem);
    folder = parent / fmt::format("{}-{}", time, i);
  }
  for (const char* sub : {"logs", "events", "checkpoints", "tensorboard"}) {
    fs::create_directory(folder / sub, problem);
    if (problem) return failed(folder / sub, problem);
  }
  fs::path link = parent / "latest", fresh = parent / (".latest-" + folder.filename().string());
  fs::create_directory_symlink(folder.filename(), fresh, problem);
  if (!problem) fs::rename(fresh, link, problem);
  if (problem) return failed(link, problem);
  return folder.string();
}

}  // namespace yoke
