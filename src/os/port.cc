#include "os/port.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

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

}  // namespace yoke
