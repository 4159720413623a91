#include "os/shared_mapping.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

namespace yoke {
namespace {

TEST(SharedMapping, AnotherProcessSeesWhatIsWritten) {
  auto mine = SharedMapping::create(1 << 20);
  ASSERT_TRUE(mine) << mine.error().what;
  auto* bell = new (mine->data()) std::atomic<std::uint32_t>(0);
  pid_t child = fork();
  if (child == 0) {
    auto theirs = SharedMapping::open(getppid(), mine->fd(), mine->bytes());
    if (!theirs) _exit(1);
    theirs->data()[4096] = std::byte{42};
    ring(*reinterpret_cast<std::atomic<std::uint32_t>*>(theirs->data()));
    _exit(0);
  }
  while (bell->load() == 0) wait_at_bell(*bell, 0, 10);
  EXPECT_EQ(mine->data()[4096], std::byte{42});
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(SharedMapping, AProcessThatIsGone) {
  pid_t child = fork();
  if (child == 0) _exit(0);
  ProcessWatch watch(child);
  // Its end is seen although nobody has reaped it yet.
  while (!watch.ended()) std::this_thread::yield();
  waitpid(child, nullptr, 0);
  auto theirs = SharedMapping::open(child, 3, 4096);
  ASSERT_FALSE(theirs);
  EXPECT_EQ(theirs.error().kind, ErrorKind::environment);
  EXPECT_FALSE(ProcessWatch(getpid()).ended());
}

TEST(SharedMapping, TheBellEndsByItself) {
  std::atomic<std::uint32_t> bell{7};
  wait_at_bell(bell, 8, 60);     // holds something else already
  wait_at_bell(bell, 7, 0.001);  // nobody rings
  EXPECT_EQ(host_identity(), host_identity());
}

}  // namespace
}  // namespace yoke
