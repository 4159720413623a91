#include "os/memory_limit.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <stdexcept>
#include <system_error>

#include "os/file.h"

namespace yoke {
namespace {

TEST(MemoryLimit, TheTightestOfMachineAndCgroups) {
  TemporaryFolder root;
  auto write = [&](const std::string& path, const std::string& text) {
    std::string whole = root.path() + path;
    ASSERT_TRUE(make_folders(whole.substr(0, whole.rfind('/'))));
    ASSERT_TRUE(write_file_atomically(whole, text));
  };
  EXPECT_FALSE(shared_memory_limit(root.path()));
  write("/proc/meminfo", "MemTotal:       1000 kB\nMemFree: 10 kB\n");
  auto machine = shared_memory_limit(root.path());
  ASSERT_TRUE(machine);
  EXPECT_EQ(machine->bytes, Bytes(1000 * 1024));
  write("/proc/self/cgroup", "0::/user/job\n");
  write("/sys/fs/cgroup/user/job/memory.max", "max\n");
  EXPECT_EQ(shared_memory_limit(root.path())->what, "this machine's memory");
  write("/sys/fs/cgroup/user/memory.max", "512000\n");
  auto cgroup = shared_memory_limit(root.path());
  EXPECT_EQ(cgroup->bytes, Bytes(512000));
  EXPECT_EQ(cgroup->what, "the cgroup's memory.max");
}

TEST(MemoryLimit, RefusalsAreExplained) {
  auto said = [](const std::exception& e) {
    auto error = refusal(e);
    return error ? error->what : "nothing";
  };
  for (const std::string& text :
       {said(std::bad_alloc()), said(std::system_error(ENOMEM, std::generic_category())),
        said(
            std::runtime_error("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory: you"))})
    EXPECT_TRUE(text.starts_with("out of memory: ")) << text;
  std::string thread = said(std::system_error(EAGAIN, std::generic_category()));
  EXPECT_TRUE(thread.starts_with("the system refused a thread, or the memory for it")) << thread;
  EXPECT_EQ(said(std::system_error(ECONNREFUSED, std::generic_category())), "nothing");
  EXPECT_EQ(said(std::runtime_error("no kernel")), "nothing");
}

TEST(MemoryLimit, OfEachProcess) {
  pid_t child = fork();
  if (child == 0) {
    rlimit limit{std::size_t{8} << 30, std::size_t{8} << 30};
    setrlimit(RLIMIT_AS, &limit);
    auto seen = process_memory_limit();
    _exit(seen && seen->bytes == Bytes(8.0 * (1 << 30)) && seen->what == "ulimit -v" ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace yoke
