#include "os/warden.h"

#include <gmock/gmock.h>
#include <sys/wait.h>

#include "os/sweep.h"
#include "os/testing.h"

namespace yoke {
namespace {

class WardenTest : public testing::Test {
 protected:
  SpawnOptions sh(const std::string& script) {
    return {.argv = {"sh", "-c", script},
            .environment = {"PATH=/usr/bin:/bin", std::string(job_variable) + "=" + job_}};
  }
  // A program that leaves daemons, with and without the job's mark, and says so.
  SpawnOptions daemons(const std::string& then) {
    return sh(daemon_script(folder_.path("marked")) + daemon_script(folder_.path("bare"), true) + "until [ -s " +
              folder_.path("marked") + " ] && [ -s " + folder_.path("bare") + " ]; do sleep 0.01; done; " + then);
  }

  static std::vector<ProcessEnd> all_ends(ProcessSet& set) {
    std::vector<ProcessEnd> ends;
    EXPECT_TRUE(wait_until([&] {
      while (auto end = set.next_end()) ends.push_back(*end);
      return set.finished();
    }));
    return ends;
  }

  TestFolder folder_;
  std::string job_ = new_job_id("");
};

TEST_F(WardenTest, ReportsEachEnd) {
  std::int64_t before = unix_ns();
  auto set = ProcessSet::start({sh("exit 0"), sh("exit 7"), sh("kill -SEGV $$")}, job_);
  ASSERT_TRUE(set);
  std::vector<ProcessEnd> ends = all_ends(*set);
  ASSERT_EQ(ends.size(), 3u);
  std::sort(ends.begin(), ends.end(), [](const auto& a, const auto& b) { return a.index < b.index; });
  EXPECT_TRUE(ends[0].status.ok());
  EXPECT_EQ(ends[1].status.code, 7);
  EXPECT_EQ(ends[2].status.signal, SIGSEGV);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(ends[i].pid, set->pids()[i]);
    EXPECT_GE(ends[i].time_ns, before);
    EXPECT_LE(ends[i].time_ns, unix_ns());
  }
  EXPECT_FALSE(set->lost());
  EXPECT_TRUE(set->survivors().empty());
}

TEST_F(WardenTest, SignalsReachThePrograms) {
  auto set =
      ProcessSet::start({sh("trap 'exit 5' TERM; echo > " + folder_.path("ready") + "; while :; do sleep 0.01; done"),
                         sh("exec sleep 1000")},
                        job_);
  ASSERT_TRUE(set);
  ASSERT_TRUE(wait_until([&] { return folder_.has("ready"); }));
  set->signal_all(SIGTERM);
  std::vector<ProcessEnd> ends = all_ends(*set);
  ASSERT_EQ(ends.size(), 2u);
  for (const ProcessEnd& end : ends) {
    EXPECT_EQ(end.status, end.index == 0 ? ExitStatus{.code = 5} : ExitStatus{.signal = SIGTERM});
  }
}

TEST_F(WardenTest, DaemonsDieWhenTheProgramsHaveEnded) {
  auto set = ProcessSet::start({daemons("exit 0")}, job_);
  ASSERT_TRUE(set);
  EXPECT_EQ(all_ends(*set).size(), 1u);
  EXPECT_FALSE(alive(folder_.read_pid("marked")));
  EXPECT_FALSE(alive(folder_.read_pid("bare")));
}

TEST_F(WardenTest, TheMarkFindsWhoIsNoDescendant) {
  Result<pid_t> elsewhere = spawn(sh("exec sleep 1000"));  // as if a service had started it for a program
  ASSERT_TRUE(elsewhere);
  auto set = ProcessSet::start({sh("exit 0")}, job_);
  ASSERT_TRUE(set);
  all_ends(*set);
  EXPECT_FALSE(alive(*elsewhere));
  ::kill(*elsewhere, SIGKILL);
  ::waitpid(*elsewhere, nullptr, 0);
}

TEST_F(WardenTest, DestructionKillsEverything) {
  std::vector<pid_t> pids;
  {
    auto set = ProcessSet::start({daemons("exec sleep 1000"), sh("trap '' TERM INT; sleep 1000 & wait")}, job_);
    ASSERT_TRUE(set);
    pids = set->pids();
    pids.push_back(folder_.read_pid("marked"));
    pids.push_back(folder_.read_pid("bare"));
    for (pid_t pid : pids) EXPECT_TRUE(alive(pid));
  }
  for (pid_t pid : pids) EXPECT_FALSE(alive(pid));
}

TEST_F(WardenTest, NothingSurvivesTheOwnersSigkill) {
  folder_.write("scratch/file", "");
  folder_.write("scratch.inner/file", "");
  folder_.write("scratched/file", "");
  pid_t owner = ::fork();
  if (owner == 0) {
    auto set =
        ProcessSet::start({daemons("exec sleep 1000"), sh("echo $$ > " + folder_.path("rank") + "; exec sleep 1000")},
                          job_, folder_.path("scratch"));
    ::pause();
    ::_exit(0);
  }
  std::vector<pid_t> pids{folder_.read_pid("marked"), folder_.read_pid("bare"), folder_.read_pid("rank")};
  for (pid_t pid : pids) EXPECT_TRUE(alive(pid));
  ::kill(owner, SIGKILL);
  ::waitpid(owner, nullptr, 0);
  for (pid_t pid : pids) EXPECT_TRUE(wait_until([&] { return !alive(pid); }));
  EXPECT_TRUE(wait_until([&] { return !folder_.has("scratch") && !folder_.has("scratch.inner"); }));
  EXPECT_TRUE(folder_.has("scratched"));
}

TEST_F(WardenTest, LossOfTheWardenIsNoticedAndSweptUp) {
  auto set = ProcessSet::start({daemons("exec sleep 1000")}, job_);
  ASSERT_TRUE(set);
  pid_t marked = folder_.read_pid("marked"), bare = folder_.read_pid("bare");
  auto rank = process_info(set->pids()[0]);
  ASSERT_TRUE(rank);
  ::kill(rank->parent, SIGKILL);
  EXPECT_TRUE(all_ends(*set).empty());
  EXPECT_TRUE(set->lost());
  EXPECT_FALSE(alive(marked));
  EXPECT_TRUE(wait_until([&] { return !alive(set->pids()[0]); }));
  ::kill(bare, SIGKILL);  // has neither parent nor mark: nobody can know it then
}

TEST_F(WardenTest, OneThatCannotStartLeavesNone) {
  SpawnOptions absent = sh("");
  absent.argv = {"no-such-program"};
  auto set = ProcessSet::start({sh("echo $$ > " + folder_.path("rank") + "; exec sleep 1000"), absent}, job_);
  ASSERT_FALSE(set);
  EXPECT_EQ(set.error().kind, ErrorKind::environment);
  EXPECT_EQ(set.error().what, "cannot start no-such-program: No such file or directory");
  EXPECT_FALSE(set.error().hint.empty());
  EXPECT_TRUE(processes_of_job(job_).empty());
}

TEST_F(WardenTest, SixtyFour) {
  auto set = ProcessSet::start(std::vector<SpawnOptions>(64, sh("exit 1")), job_);
  ASSERT_TRUE(set);
  EXPECT_EQ(all_ends(*set).size(), 64u);
}

TEST_F(WardenTest, HoldsNoFileOfTheOwners) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0);
  auto set = ProcessSet::start({sh("exec sleep 1000")}, job_);
  ASSERT_TRUE(set);
  ::close(ends[1]);
  pollfd source{ends[0], 0, 0};
  EXPECT_TRUE(wait_until([&] { return ::poll(&source, 1, 0) == 1 && (source.revents & POLLHUP) != 0; }));
  ::close(ends[0]);
}

}  // namespace
}  // namespace yoke
