#include "os/signals.h"

#include <gtest/gtest.h>

namespace yoke {
namespace {

TEST(Signals, Names) {
  EXPECT_EQ(signal_name(SIGKILL), "SIGKILL");
  EXPECT_EQ(signal_name(SIGSEGV), "SIGSEGV");
  EXPECT_EQ(signal_name(99), "signal 99");
}

TEST(Signals, QueueReadsWithSender) {
  auto queue = SignalQueue::open({SIGUSR1, SIGTERM});
  ASSERT_TRUE(queue);
  EXPECT_FALSE(queue->read());
  ::kill(::getpid(), SIGTERM);
  auto received = queue->read();
  ASSERT_TRUE(received);
  EXPECT_EQ(received->number, SIGTERM);
  EXPECT_EQ(received->sender, ::getpid());
  EXPECT_FALSE(queue->read());
}

TEST(Signals, MaskComesBack) {
  sigset_t mask;
  {
    auto queue = SignalQueue::open({SIGUSR1});
    ASSERT_TRUE(queue);
    ::sigprocmask(SIG_BLOCK, nullptr, &mask);
    EXPECT_TRUE(sigismember(&mask, SIGUSR1));
    EXPECT_FALSE(sigismember(&queue->original_mask(), SIGUSR1));
  }
  ::sigprocmask(SIG_BLOCK, nullptr, &mask);
  EXPECT_FALSE(sigismember(&mask, SIGUSR1));
}

TEST(Signals, IgnoredStayIgnored) {
  ::signal(SIGHUP, SIG_IGN);
  {
    auto queue = SignalQueue::open({SIGHUP, SIGUSR1});
    ASSERT_TRUE(queue);
    ::kill(::getpid(), SIGHUP);
    EXPECT_FALSE(queue->read());
  }
  ::signal(SIGHUP, SIG_DFL);
}

}  // namespace
}  // namespace yoke
