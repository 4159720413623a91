// For tests that deal with real processes: waiting for something to become true, folders that go away, who is alive.
#pragma once

#include <gtest/gtest.h>
#include <poll.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>
#include <string>
#include <vector>

#include "os/clock.h"
#include "os/process_table.h"

namespace yoke {

// False if it did not become true within the limit.
inline bool wait_until(const std::function<bool()>& condition, double limit_seconds = 60) {
  std::int64_t deadline = monotonic_ns() + static_cast<std::int64_t>(limit_seconds * 1e9);
  while (!condition()) {
    if (monotonic_ns() > deadline) return false;
    ::poll(nullptr, 0, 2);
  }
  return true;
}

// Dead processes that nobody has reaped are not alive.
inline bool alive(pid_t pid) {
  auto info = process_info(pid);
  return info && info->state != 'Z' && info->state != 'X';
}

class TestFolder {
 public:
  TestFolder() {
    std::string pattern = (std::filesystem::temp_directory_path() / "yoke-test-XXXXXX").string();
    EXPECT_NE(::mkdtemp(pattern.data()), nullptr);
    path_ = pattern;
  }
  TestFolder(const TestFolder&) = delete;
  TestFolder& operator=(const TestFolder&) = delete;
  ~TestFolder() { std::filesystem::remove_all(path_); }

  std::string path(const std::string& name = {}) const { return name.empty() ? path_ : path_ + "/" + name; }
  bool has(const std::string& name) const { return std::filesystem::exists(path(name)); }
  std::string read(const std::string& name) const {
    std::ifstream file(path(name));
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  // The number in a file that another process writes; waits for its whole line.
  pid_t read_pid(const std::string& name) const {
    EXPECT_TRUE(wait_until([&] { return read(name).ends_with("\n"); })) << name;
    return static_cast<pid_t>(std::stol("0" + read(name)));
  }
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories(std::filesystem::path(path(name)).parent_path());
    std::ofstream(path(name)) << text;
  }

 private:
  std::string path_;
};

// Shell text that starts a daemon (forked twice, in its own session), which puts its pid into the file. With `bare` it
// has no environment either.
inline std::string daemon_script(const std::string& pid_file, bool bare = false) {
  std::string inner = "echo $$ > " + pid_file + "; exec sleep 1000";
  return std::string("(") + (bare ? "env -i " : "") + "/usr/bin/setsid /bin/sh -c '" + inner +
         "' </dev/null >/dev/null 2>&1 &); ";
}

}  // namespace yoke
