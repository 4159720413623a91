#include "os/port.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <thread>

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

TEST(Port, AwaitsAListener) {
  auto port = free_tcp_port();
  ASSERT_TRUE(port);
  EXPECT_FALSE(await_listener("127.0.0.1", *port, 0.01));
  EXPECT_FALSE(await_listener("no.such.host.invalid", *port, 0.01));
  std::thread late([&] {
    int fd = ::socket(AF_INET, SOCK_STREAM, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(*port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(::listen(fd, 1), 0);
    EXPECT_GE(::accept(fd, nullptr, nullptr), 0);
    ::close(fd);
  });
  EXPECT_TRUE(await_listener("127.0.0.1", *port, 60));
  late.join();
}

}  // namespace
}  // namespace yoke
