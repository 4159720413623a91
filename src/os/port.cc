#include "os/port.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "os/clock.h"
#include "os/fd.h"

namespace yoke {

Result<int> free_tcp_port() {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  socklen_t size = sizeof address;
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (!fd || ::bind(fd.get(), generic, size) != 0 || ::getsockname(fd.get(), generic, &size) != 0) {
    return fail(ErrorKind::environment, fmt::format("no free TCP port: {}", std::strerror(errno)));
  }
  return ntohs(address.sin_port);
}

bool await_listener(const std::string& host, int port, double limit_seconds) {
  constexpr int pause_us = 2000;
  std::int64_t deadline = monotonic_ns() + static_cast<std::int64_t>(limit_seconds * 1e9);
  addrinfo wanted{};
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &wanted, &found) != 0) return false;
  bool listening = false;
  while (!listening && monotonic_ns() < deadline) {
    for (addrinfo* a = found; a != nullptr && !listening; a = a->ai_next) {
      Fd fd(::socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol));
      listening = fd && ::connect(fd.get(), a->ai_addr, a->ai_addrlen) == 0;
    }
    if (!listening) usleep(pause_us);
  }
  freeaddrinfo(found);
  return listening;
}

}  // namespace yoke
