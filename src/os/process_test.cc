#include "os/process.h"

#include <fcntl.h>
#include <sys/wait.h>

#include "os/fd.h"
#include "os/testing.h"

namespace yoke {
namespace {

const std::vector<std::string> path_only{"PATH=/usr/bin:/bin"};

ExitStatus wait_for(pid_t pid) {
  siginfo_t info{};
  EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED), 0);
  return exit_status(info);
}

ExitStatus run(const std::string& script, SpawnOptions options = {}) {
  options.argv = {"sh", "-c", script};
  if (options.environment.empty()) options.environment = path_only;
  Result<pid_t> pid = spawn(options);
  EXPECT_TRUE(pid) << pid.error().what;
  return wait_for(*pid);
}

struct Output {
  TestFolder folder;
  Fd file{::open(folder.path("out").c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600)};
  std::string text() const { return folder.read("out"); }
};

TEST(Process, ExitStatus) {
  EXPECT_TRUE(run("true").ok());
  EXPECT_EQ(run("exit 3"), (ExitStatus{.code = 3}));
  EXPECT_EQ(run("kill -KILL $$").signal, SIGKILL);
}

TEST(Process, Describe) {
  EXPECT_EQ(describe(ExitStatus{.code = 3}), "exited with code 3");
  EXPECT_EQ(describe(ExitStatus{.signal = SIGSEGV, .core_dumped = true}), "was killed by SIGSEGV (core dumped)");
  EXPECT_EQ(shell_code({.code = 3}), 3);
  EXPECT_EQ(shell_code({.signal = SIGKILL}), 137);
}

TEST(Process, EnvironmentDirectoryOutputs) {
  Output out, err;
  SpawnOptions options{.environment = {"PATH=/usr/bin:/bin", "A=x y"},
                       .directory = out.folder.path(),
                       .stdout_fd = out.file.get(),
                       .stderr_fd = err.file.get()};
  EXPECT_TRUE(run("echo \"$A\"; pwd; echo problem >&2; cat; env | grep -c =", options).ok());  // cat: stdin is empty
  EXPECT_TRUE(out.text().starts_with("x y\n" + out.folder.path() + "\n")) << out.text();
  EXPECT_EQ(err.text(), "problem\n");
}

TEST(Process, OutputsMayBeSwapped) {
  Output out, err;
  // The child's 1 and 2 are taken from 2 and 1 of the parent's table.
  ASSERT_TRUE(run("exec 3>&1; echo o; echo e >&2", {.stdout_fd = err.file.get(), .stderr_fd = out.file.get()}).ok());
  EXPECT_EQ(out.text(), "e\n");
  EXPECT_EQ(err.text(), "o\n");
}

TEST(Process, OwnSessionAndNoOtherFiles) {
  Output out;
  int inherited = ::dup(out.file.get());  // without close-on-exec
  EXPECT_TRUE(run("ls /proc/$$/fd; ps -o sid= -p $$; echo $$", {.stdout_fd = out.file.get()}).ok());
  ::close(inherited);
  std::stringstream words(out.text());
  std::string in, o, e;
  long session = 0, pid = 1;
  words >> in >> o >> e >> session >> pid;
  EXPECT_EQ(in + o + e, "012");
  EXPECT_EQ(session, pid);
}

TEST(Process, SignalMask) {
  sigset_t block, before;
  sigemptyset(&block);
  sigaddset(&block, SIGTERM);
  ::sigprocmask(SIG_BLOCK, &block, &before);
  ExitStatus status = run("kill -TERM $$; exit 1", {.signal_mask = before});
  ::sigprocmask(SIG_SETMASK, &before, nullptr);
  EXPECT_EQ(status.signal, SIGTERM);
}

TEST(Process, CannotStart) {
  Result<pid_t> absent = spawn({.argv = {"no-such-program"}, .environment = path_only});
  ASSERT_FALSE(absent);
  EXPECT_EQ(absent.error().kind, ErrorKind::environment);
  EXPECT_EQ(absent.error().what, "cannot start no-such-program: No such file or directory");

  TestFolder folder;
  folder.write("data", "text");
  Result<pid_t> not_executable = spawn({.argv = {folder.path("data")}, .environment = path_only});
  ASSERT_FALSE(not_executable);
  EXPECT_NE(not_executable.error().what.find("Permission denied"), std::string::npos);
  EXPECT_NE(not_executable.error().hint.find("chmod"), std::string::npos);

  Result<pid_t> no_folder = spawn({.argv = {"true"}, .environment = path_only, .directory = folder.path("absent")});
  ASSERT_FALSE(no_folder);
  EXPECT_NE(no_folder.error().what.find(folder.path("absent")), std::string::npos);
  EXPECT_EQ(::waitpid(-1, nullptr, WNOHANG), -1);  // no zombies
}

TEST(Process, DiesWithItsParent) {
  TestFolder folder;
  pid_t parent = ::fork();
  if (parent == 0) {
    spawn({.argv = {"sh", "-c", "echo $$ > " + folder.path("pid") + "; exec sleep 1000"}, .environment = path_only});
    ::pause();
    ::_exit(0);
  }
  pid_t child = folder.read_pid("pid");
  EXPECT_TRUE(alive(child));
  ::kill(parent, SIGKILL);
  ::waitpid(parent, nullptr, 0);
  EXPECT_TRUE(wait_until([&] { return !alive(child); }));
}

}  // namespace
}  // namespace yoke
