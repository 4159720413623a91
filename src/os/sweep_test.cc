#include "os/sweep.h"

#include <gmock/gmock.h>
#include <sys/wait.h>

#include "os/process.h"
#include "os/testing.h"

namespace yoke {
namespace {

TEST(Sweep, Marks) {
  EXPECT_TRUE(belongs_to_job("a-1", "a-1"));
  EXPECT_TRUE(belongs_to_job("a-1.b-2", "a-1"));
  EXPECT_FALSE(belongs_to_job("a-12", "a-1"));
  EXPECT_FALSE(belongs_to_job("a-1", "a-1.b-2"));
  std::string outer = new_job_id(""), inner = new_job_id(outer);
  EXPECT_TRUE(belongs_to_job(inner, outer));
  EXPECT_NE(new_job_id(""), outer);
}

TEST(Sweep, FindsByMarkAlone) {
  TestFolder proc;
  proc.write("12/environ", std::string("A=1\0YOKE_JOB_ID=j-1\0", 20));
  proc.write("13/environ", std::string("YOKE_JOB_ID=j-1.k-2\0", 20));
  proc.write("14/environ", std::string("YOKE_JOB_ID=j-2\0", 16));
  proc.write("15/stat", "15 (sh) S 12 12 12 0 -1");
  EXPECT_THAT(processes_of_job("j-1", proc.path()), testing::UnorderedElementsAre(12, 13));
}

TEST(Sweep, KillsTheJobOnly) {
  std::string job = new_job_id(""), other = new_job_id("");
  auto start = [](const std::string& mark) {
    auto pid = spawn({.argv = {"sleep", "1000"}, .environment = {"PATH=/usr/bin:/bin", "YOKE_JOB_ID=" + mark}});
    EXPECT_TRUE(pid);
    return *pid;
  };
  pid_t mine = start(job), inner = start(job + ".x-1"), foreign = start(other);
  EXPECT_TRUE(kill_job(job, 60).empty());
  EXPECT_FALSE(alive(mine));
  EXPECT_FALSE(alive(inner));
  EXPECT_TRUE(alive(foreign));
  ::kill(foreign, SIGKILL);
  for (pid_t pid : {mine, inner, foreign}) ::waitpid(pid, nullptr, 0);
}

}  // namespace
}  // namespace yoke
