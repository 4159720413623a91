#include "ops/launch/launch.h"

#include <gmock/gmock.h>
#include <sys/wait.h>

#include <csignal>
#include <set>

#include "core/base/text.h"
#include "os/testing.h"

namespace yoke {
namespace {

using testing::HasSubstr;

struct Recorder : LaunchObserver {
  void on_attempt(const AttemptInfo& info) override {
    ports.push_back(info.master_port);
    pids = info.pids;
  }
  void on_line(int rank, Stream stream, const std::string& line) override {
    lines.push_back(fmt::format("{}{} {}", rank, stream == Stream::err ? "e" : "", line));
    if (react) react(line);
  }
  void on_failure(const RankFailure& failure) override { failures.push_back(failure); }
  void on_restart(int restart, const RankFailure& failure) override {
    restarts.push_back(fmt::format("{}: {}", restart, describe(failure.end.status)));
  }
  void on_signal(int number) override { signals.push_back(number); }

  std::vector<int> ports, signals;
  std::vector<pid_t> pids;
  std::vector<std::string> lines, restarts;
  std::vector<RankFailure> failures;
  std::function<void(const std::string&)> react;
};

class LaunchTest : public testing::Test {
 protected:
  LaunchOptions sh(int ranks, const std::string& script) {
    LaunchOptions options;
    options.command = {"/bin/sh", "-c", script};
    options.ranks = ranks;
    options.environment = {{"PATH", "/usr/bin:/bin"}, {"DIR", folder_.path()}};
    options.grace = {60, 60};
    return options;
  }
  LaunchOutcome go(const LaunchOptions& options) {
    Result<LaunchOutcome> outcome = launch(options, seen_);
    EXPECT_TRUE(outcome) << outcome.error().what;
    return outcome ? *outcome : LaunchOutcome{.exit_code = -1};
  }

  TestFolder folder_;
  Recorder seen_;
};

// Shell text: goes on when the file is there.
std::string wait_for(const std::string& file) { return "until [ -e $DIR/" + file + " ]; do sleep 0.01; done; "; }

TEST_F(LaunchTest, SuccessAndPlaces) {
  LaunchOutcome outcome = go(sh(3, "echo $RANK of $WORLD_SIZE at $MASTER_ADDR:$MASTER_PORT"));
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_FALSE(outcome.cause);
  std::vector<std::string> expected;
  for (int rank = 0; rank < 3; ++rank) {
    expected.push_back(fmt::format("{} {} of 3 at 127.0.0.1:{}", rank, rank, seen_.ports.at(0)));
  }
  EXPECT_THAT(seen_.lines, testing::UnorderedElementsAreArray(expected));
}

TEST_F(LaunchTest, LinesAreNeverMixed) {
  // Both ranks write half lines by turns; a line that never ends is handed on at the end.
  std::string script =
      "other=$((1 - RANK)); for i in 1 2 3; do printf \"begin $i \"; : > $DIR/$RANK.$i; "
      "until [ -e $DIR/$other.$i ]; do sleep 0.01; done; echo end $i; done; printf last";
  go(sh(2, script));
  std::vector<std::string> expected;
  for (const char* rank : {"0", "1"}) {
    for (const char* i : {"1", "2", "3"}) expected.push_back(fmt::format("{} begin {} end {}", rank, i, i));
    expected.push_back(std::string(rank) + " last");
  }
  EXPECT_THAT(seen_.lines, testing::UnorderedElementsAreArray(expected));
}

TEST_F(LaunchTest, FirstFailureIsNamedAlthoughOthersFailToo) {
  LaunchOutcome outcome = go(sh(3, "case $RANK in 1) " + wait_for("ready0") + wait_for("ready2") +
                                       "echo why >&2; exit 42;; *) trap 'exit 7' TERM; : > $DIR/ready$RANK; "
                                       "while :; do sleep 0.01; done;; esac"));
  EXPECT_EQ(outcome.exit_code, 42);
  ASSERT_TRUE(outcome.cause);
  EXPECT_EQ(outcome.cause->rank, 1);
  EXPECT_EQ(outcome.cause->end.pid, seen_.pids.at(1));
  EXPECT_EQ(outcome.cause->last_lines, std::vector<std::string>{"why"});
  EXPECT_EQ(describe(*outcome.cause), fmt::format("rank 1 (pid {}) exited with code 42", seen_.pids.at(1)));
  EXPECT_EQ(outcome.also_failed.size(), 2u);
  EXPECT_EQ(seen_.failures.size(), 1u);
}

TEST_F(LaunchTest, PeersThatWeStopAreNoFailures) {
  LaunchOutcome outcome = go(sh(2, "[ $RANK = 0 ] && exec sleep 1000; kill -SEGV $$"));
  EXPECT_EQ(outcome.exit_code, 128 + SIGSEGV);
  EXPECT_EQ(outcome.cause->rank, 1);
  EXPECT_EQ(outcome.cause->end.status.signal, SIGSEGV);
  EXPECT_TRUE(outcome.also_failed.empty());
}

TEST_F(LaunchTest, PeersThatIgnoreTermAreKilled) {
  LaunchOptions options = sh(2, "[ $RANK = 0 ] && { trap '' TERM; : > $DIR/ready; while :; do sleep 0.01; done; }; " +
                                    wait_for("ready") + "exit 1");
  options.grace.peers = 0.05;
  EXPECT_EQ(go(options).exit_code, 1);
  EXPECT_FALSE(alive(seen_.pids.at(0)));
}

TEST_F(LaunchTest, KilledFromOutside) {
  seen_.react = [&](const std::string&) { ::kill(seen_.pids.at(0), SIGKILL); };
  LaunchOutcome outcome = go(sh(1, "echo ready; exec sleep 1000"));
  EXPECT_EQ(outcome.exit_code, 137);
  EXPECT_THAT(hint(*outcome.cause), HasSubstr("out-of-memory"));
}

TEST_F(LaunchTest, RecordedException) {
  LaunchOutcome outcome = go(sh(1,
                                "echo '{\"message\":{\"message\":\"ValueError: x\"}}' > $TORCHELASTIC_ERROR_FILE; echo "
                                "$TORCHELASTIC_ERROR_FILE; exit 1"));
  EXPECT_EQ(outcome.cause->message, "ValueError: x");
  EXPECT_FALSE(std::filesystem::exists(std::filesystem::path(seen_.lines.at(0).substr(2)).parent_path()));
}

TEST_F(LaunchTest, RestartsAllWithNewCount) {
  LaunchOptions options = sh(2,
                             "echo $TORCHELASTIC_RESTART_COUNT/$TORCHELASTIC_MAX_RESTARTS $MASTER_PORT; "
                             "[ $TORCHELASTIC_RESTART_COUNT = 2 ] && exit 0; [ $RANK = 1 ] && exit 9; exec sleep 1000");
  options.max_restarts = 3;
  options.log_dir = folder_.path("logs/deep");
  LaunchOutcome outcome = go(options);
  EXPECT_EQ(outcome.exit_code, 0);
  EXPECT_EQ(outcome.restarts, 2);
  EXPECT_EQ(seen_.restarts, (std::vector<std::string>{"1: exited with code 9", "2: exited with code 9"}));
  ASSERT_EQ(seen_.ports.size(), 3u);
  for (int attempt : {0, 1, 2}) {
    EXPECT_THAT(seen_.lines,
                testing::Contains(fmt::format("1 {}/3 {}", attempt, seen_.ports[static_cast<std::size_t>(attempt)])));
  }
  std::string log = folder_.read("logs/deep/rank-00001.log");
  EXPECT_THAT(log, testing::AllOf(HasSubstr("=== attempt 0, "), HasSubstr("\n0/3 "), HasSubstr("=== attempt 2, "),
                                  HasSubstr("\n2/3 ")));
}

TEST_F(LaunchTest, RestartsComeToAnEnd) {
  LaunchOptions options = sh(1, "exit 5");
  options.max_restarts = 2;
  LaunchOutcome outcome = go(options);
  EXPECT_EQ(outcome.exit_code, 5);
  EXPECT_EQ(outcome.restarts, 2);
  EXPECT_EQ(outcome.cause->attempt, 2);
}

TEST_F(LaunchTest, NoRestartForAFinalCode) {
  LaunchOptions options = sh(1, "exit $((TORCHELASTIC_RESTART_COUNT + 4))");
  options.max_restarts = 3;
  options.final_codes = {5};
  LaunchOutcome outcome = go(options);
  EXPECT_EQ(outcome.exit_code, 5);
  EXPECT_EQ(outcome.restarts, 1);
}

TEST_F(LaunchTest, TermIsPassedOnWithTimeToSave) {
  LaunchOptions options = sh(2, "trap ': > $DIR/saved$RANK; exit 0' TERM; echo ready; while :; do sleep 0.01; done");
  options.max_restarts = 3;
  int ready = 0;
  seen_.react = [&](const std::string&) {
    if (++ready == 2) ::kill(::getpid(), SIGTERM);
  };
  LaunchOutcome outcome = go(options);
  EXPECT_EQ(outcome.exit_code, 143);
  EXPECT_EQ(outcome.stop_signal, SIGTERM);
  EXPECT_FALSE(outcome.cause);
  EXPECT_TRUE(folder_.has("saved0") && folder_.has("saved1"));
  EXPECT_EQ(seen_.signals, std::vector<int>{SIGTERM});
}

TEST_F(LaunchTest, SecondInterruptKills) {
  LaunchOptions options = sh(1, "trap 'echo first' INT; echo ready; while :; do sleep 0.01; done");
  seen_.react = [&](const std::string&) { ::kill(::getpid(), SIGINT); };  // at "ready" and at "first"
  LaunchOutcome outcome = go(options);
  EXPECT_EQ(outcome.exit_code, 130);
  EXPECT_EQ(seen_.lines, (std::vector<std::string>{"0 ready", "0 first"}));
}

TEST_F(LaunchTest, GraceEndsWithKill) {
  LaunchOptions options = sh(1, "trap '' TERM; echo ready; while :; do sleep 0.01; done");
  options.grace.stop = 0.05;
  seen_.react = [&](const std::string&) { ::kill(::getpid(), SIGTERM); };
  EXPECT_EQ(go(options).exit_code, 143);
}

TEST_F(LaunchTest, OrphansAreGoneAtTheEnd) {
  std::string script;
  for (const char* rank : {"0", "1"}) {
    std::string marked = folder_.path(std::string("marked") + rank), bare = folder_.path(std::string("bare") + rank);
    script += fmt::format("[ $RANK = {} ] && {{ {} {} }}; ", rank, daemon_script(marked), daemon_script(bare, true));
  }
  go(sh(2, script + "until [ -s $DIR/marked$RANK ] && [ -s $DIR/bare$RANK ]; do sleep 0.01; done"));
  for (const char* file : {"marked0", "bare0", "marked1", "bare1"}) EXPECT_FALSE(alive(folder_.read_pid(file))) << file;
}

TEST_F(LaunchTest, ProgramThatIsNotThere) {
  LaunchOptions options = sh(2, "");
  options.command = {"no-such-program"};
  auto outcome = launch(options, seen_);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.error().kind, ErrorKind::environment);
  EXPECT_THAT(outcome.error().what, HasSubstr("no-such-program"));
}

TEST_F(LaunchTest, SixtyFourRanks) {
  LaunchOutcome outcome = go(sh(64, "echo hello; exit $((RANK == 63 ? 3 : 0))"));
  EXPECT_EQ(outcome.exit_code, 3);
  EXPECT_EQ(outcome.cause->rank, 63);
  EXPECT_EQ(std::set<std::string>(seen_.lines.begin(), seen_.lines.end()).count("63 hello"), 1u);
}

TEST_F(LaunchTest, MuchOutputArrivesWhole) {
  go(sh(2,
        "i=0; while [ $i -lt 3000 ]; do echo 0123456789012345678901234567890123456789012345678901234567890123456789; "
        "i=$((i+1)); done"));
  EXPECT_EQ(seen_.lines.size(), 6000u);
  for (const std::string& line : seen_.lines) ASSERT_EQ(line.size(), 72u) << line;
}

}  // namespace
}  // namespace yoke
