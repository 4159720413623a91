#include "os/signals.h"

#include <sys/signalfd.h>

#include <cerrno>
#include <cstring>

namespace yoke {

std::string signal_name(int number) {
  const char* name = ::sigabbrev_np(number);
  if (name != nullptr) return std::string("SIG") + name;
  return fmt::format("signal {}", number);
}

Result<SignalQueue> SignalQueue::open(std::initializer_list<int> numbers) {
  sigset_t wanted, before;
  sigemptyset(&wanted);
  for (int number : numbers) {
    struct sigaction action {};
    ::sigaction(number, nullptr, &action);
    bool ignored = (action.sa_flags & SA_SIGINFO) == 0 && action.sa_handler == SIG_IGN;
    if (!ignored) sigaddset(&wanted, number);
  }
  Fd fd(::signalfd(-1, &wanted, SFD_CLOEXEC | SFD_NONBLOCK));
  if (!fd) return fail(ErrorKind::environment, fmt::format("signalfd: {}", std::strerror(errno)));
  ::sigprocmask(SIG_BLOCK, &wanted, &before);
  return SignalQueue(std::move(fd), before);
}

SignalQueue::SignalQueue(SignalQueue&& other) noexcept = default;

SignalQueue::~SignalQueue() {
  if (fd_) ::sigprocmask(SIG_SETMASK, &original_mask_, nullptr);
}

std::optional<ReceivedSignal> SignalQueue::read() {
  signalfd_siginfo info{};
  if (::read(fd_.get(), &info, sizeof info) != sizeof info) return std::nullopt;
  return ReceivedSignal{static_cast<int>(info.ssi_signo), info.ssi_code > 0 ? 0 : static_cast<pid_t>(info.ssi_pid)};
}

}  // namespace yoke
