#include "os/process_table.h"

#include <dirent.h>
#include <fcntl.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <memory>

#include "core/base/text.h"
#include "os/fd.h"

namespace yoke {
namespace {

// Files of /proc have no size, so they are read to their end.
std::optional<std::string> read_whole(const std::string& path) {
  Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) return std::nullopt;
  std::string text;
  char buffer[4096];
  while (true) {
    ssize_t got = ::read(fd.get(), buffer, sizeof buffer);
    if (got < 0) return std::nullopt;
    if (got == 0) return text;
    text.append(buffer, static_cast<std::size_t>(got));
  }
}

}  // namespace

std::vector<pid_t> process_ids(const std::string& root) {
  std::vector<pid_t> result;
  std::unique_ptr<DIR, int (*)(DIR*)> folder(::opendir(root.c_str()), ::closedir);
  while (folder != nullptr) {
    const dirent* entry = ::readdir(folder.get());
    if (entry == nullptr) break;
    if (auto pid = parse_integer(entry->d_name)) result.push_back(static_cast<pid_t>(*pid));
  }
  return result;
}

std::optional<ProcessInfo> process_info(pid_t pid, const std::string& root) {
  auto text = read_whole(fmt::format("{}/{}/stat", root, pid));
  if (!text) return std::nullopt;
  // "12 (a name) with (anything) S 1 ...": the name ends at the last parenthesis.
  std::size_t open = text->find('('), close = text->rfind(')');
  if (open == std::string::npos || close == std::string::npos || close < open) return std::nullopt;
  ProcessInfo info;
  info.pid = pid;
  info.name = text->substr(open + 1, close - open - 1);
  if (std::sscanf(text->c_str() + close + 1, " %c %d", &info.state, &info.parent) != 2) return std::nullopt;
  return info;
}

std::vector<ProcessInfo> children_of(pid_t parent, const std::string& root) {
  std::vector<ProcessInfo> result;
  for (pid_t pid : process_ids(root)) {
    auto info = process_info(pid, root);
    if (info && info->parent == parent) result.push_back(*info);
  }
  return result;
}

std::optional<std::string> process_variable(pid_t pid, std::string_view name, const std::string& root) {
  auto text = read_whole(fmt::format("{}/{}/environ", root, pid));
  if (!text) return std::nullopt;
  for (std::string_view rest = *text; !rest.empty();) {
    std::string_view line = rest.substr(0, rest.find('\0'));
    if (line.size() > name.size() && line.substr(0, name.size()) == name && line[name.size()] == '=') {
      return std::string(line.substr(name.size() + 1));
    }
    rest.remove_prefix(std::min(rest.size(), line.size() + 1));
  }
  return std::nullopt;
}

}  // namespace yoke
