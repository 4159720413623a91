#include "os/port.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include "os/fd.h"

namespace yoke {
namespace {

TEST(Port, CanBeListenedOn) {
  auto port = free_tcp_port();
  ASSERT_TRUE(port);
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(*port));
  ASSERT_EQ(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(::listen(fd.get(), 1), 0);
}

}  // namespace
}  // namespace yoke
