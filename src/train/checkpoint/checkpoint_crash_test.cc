// Kills, full disks and folders that cannot be written to: what was complete stays complete.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <functional>
#include <random>
#include <thread>

#include "os/file.h"
#include "train/checkpoint/test_tensors.h"

namespace yoke {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int not_possible_here = 77;

// The function in a process of its own, which dies with this one. Its result is the exit code, failed expectations make
// it 1.
pid_t start_child(const std::function<int()>& work) {
  std::fflush(nullptr);
  pid_t child = ::fork();
  if (child != 0) return child;
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  int code = work();
  std::fflush(nullptr);
  ::_exit(::testing::Test::HasFailure() ? 1 : code);
}

int exit_of(pid_t child) {
  int status = 0;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

// The newest step, after having looked at every number of it; 0 if there is none.
std::int64_t newest_step(const std::string& root) {
  std::vector<std::string> notes;
  auto newest = newest_complete(root, notes);
  EXPECT_TRUE(newest) << newest.error().what;
  EXPECT_THAT(notes, IsEmpty());  // nothing half-done looked complete
  if (!newest || !newest->has_value()) return 0;
  expect_checkpoint(**newest, (*newest)->step());
  return (*newest)->step();
}

TEST(Crash, RanksAsProcesses) {
  TemporaryFolder root;
  std::vector<pid_t> children;
  for (int rank = 0; rank < 2; ++rank)
    children.push_back(start_child([&] {
      CheckpointWriter writer({.root = root.path(), .rank = rank, .ranks = 2, .keep = 2, .timeout = 60});
      for (std::int64_t step : {1, 2, 3}) EXPECT_TRUE(writer.submit(test_job(step, rank, 2)));
      EXPECT_TRUE(writer.finish());
      return 0;
    }));
  for (pid_t child : children) EXPECT_EQ(exit_of(child), 0);
  EXPECT_EQ(newest_step(root.path()), 3);
  EXPECT_THAT(*list_folder(root.path()), ::testing::ElementsAre("step-00000002", "step-00000003"));
}

// Two ranks as threads; writes a byte for each checkpoint that is complete.
int write_for_ever(const std::string& root, std::int64_t step, const std::string& attempt, int report) {
  auto run = [&](int rank) {
    CheckpointWriter writer({.root = root, .rank = rank, .ranks = 2, .keep = 2, .timeout = 60, .attempt = attempt});
    for (std::int64_t s = step; s < step + 100000; ++s) {
      if (!writer.submit(test_job(s, rank, 2))) return;
      for (std::size_t i = writer.take_finished().size(); i > 0; --i)
        if (::write(report, "x", 1) != 1) return;
    }
  };
  std::thread other(run, 1);
  run(0);
  other.join();
  return 1;
}

TEST(Crash, KilledFiftyTimes) {
  TemporaryFolder root;
  std::mt19937 random(1);
  std::int64_t step = 0;
  for (int attempt = 0; attempt < 50 && !HasFailure(); ++attempt) {
    int pipe[2];
    ASSERT_EQ(::pipe(pipe), 0);
    pid_t child = start_child([&] {
      ::close(pipe[0]);
      return write_for_ever(root.path(), step + 1, std::to_string(attempt), pipe[1]);
    });
    ::close(pipe[1]);
    char byte;
    std::int64_t complete = 0;
    for (auto wanted = random() % 2; wanted > 0; --wanted) complete += ::read(pipe[0], &byte, 1) == 1;
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 50000));
    ::kill(child, SIGKILL);
    EXPECT_EQ(exit_of(child), 128 + SIGKILL);
    while (::read(pipe[0], &byte, 1) == 1) ++complete;
    ::close(pipe[0]);
    std::int64_t now = newest_step(root.path());
    EXPECT_GE(now, step + complete);
    step = now;
  }
  EXPECT_GT(step, 10);
}

TEST(Crash, AFullDisk) {
  TemporaryFolder folder;
  pid_t child = start_child([&] {
    // In a mount namespace of its own, so the file system goes with the process.
    if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return not_possible_here;
    if (::mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return not_possible_here;
    if (::mount("none", folder.path().c_str(), "tmpfs", 0, "size=128k") != 0) return not_possible_here;
    // One takes about 15 KiB.
    CheckpointWriter writer({.root = folder.path(), .keep = 100});
    std::int64_t step = 0;
    Result<void> result;
    while (result && step < 100) {
      result = writer.submit(test_job(++step, 0, 1));
      if (result) result = writer.finish();
    }
    EXPECT_FALSE(result);
    if (result) return 1;
    EXPECT_GT(step, 2);
    EXPECT_EQ(result.error().kind, ErrorKind::environment);
    EXPECT_THAT(result.error().what, HasSubstr(folder.path()));
    EXPECT_THAT(result.error().what, HasSubstr("No space left on device (the file needs "));
    EXPECT_EQ(newest_step(folder.path()), step - 1);
    // Once there is room again, it goes on.
    EXPECT_TRUE(remove_tree(folder.path() + "/step-00000001"));
    EXPECT_TRUE(writer.submit(test_job(step, 0, 1)));
    EXPECT_TRUE(writer.finish());
    EXPECT_EQ(newest_step(folder.path()), step);
    return 0;
  });
  int code = exit_of(child);
  if (code == not_possible_here) GTEST_SKIP() << "a small file system cannot be mounted here";
  EXPECT_EQ(code, 0);
}

TEST(Crash, AFileThatGrowsPastTheLimit) {
  TemporaryFolder root;
  pid_t child = start_child([&] {
    write_test_checkpoint_by(1, root.path(), 1, "a");
    ::signal(SIGXFSZ, SIG_IGN);
    rlimit limit{4096, 4096};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    auto written = write_test_checkpoint({.root = root.path(), .attempt = "b"}, 2);
    EXPECT_FALSE(written);
    if (written) return 1;
    EXPECT_EQ(written.error().kind, ErrorKind::environment);
    EXPECT_THAT(written.error().what, HasSubstr(".step-00000002.partial-b.1/model-00001-of-00001.safetensors"));
    EXPECT_THAT(written.error().what, HasSubstr("(the file needs "));
    EXPECT_THAT(*list_folder(root / ".step-00000002.partial-b.1"), IsEmpty());
    return 0;
  });
  EXPECT_EQ(exit_of(child), 0);
  EXPECT_EQ(newest_step(root.path()), 1);
}

TEST(Crash, AReadOnlyFolder) {
  TemporaryFolder root;
  write_test_checkpoint_by(1, root.path(), 1, "a");
  ASSERT_EQ(::chmod(root.path().c_str(), 0555), 0);
  pid_t child = start_child([&] {
    bool root_no_more = ::geteuid() != 0 || ::setuid(65534) == 0;  // root may write anywhere
    EXPECT_TRUE(root_no_more);
    auto written = write_test_checkpoint({.root = root.path(), .attempt = "b"}, 2);
    EXPECT_FALSE(written);
    if (written) return 1;
    EXPECT_EQ(written.error().kind, ErrorKind::environment);
    EXPECT_THAT(written.error().what, HasSubstr(root / ".step-00000002.partial-b.1: Permission denied"));
    EXPECT_EQ(newest_step(root.path()), 1);
    return 0;
  });
  EXPECT_EQ(exit_of(child), 0);
  EXPECT_EQ(newest_step(root.path()), 1);
  EXPECT_EQ(::chmod(root.path().c_str(), 0755), 0);
}

}  // namespace
}  // namespace yoke
