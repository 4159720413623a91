// Signals as something to read: while a SignalQueue lives, its signals wait in a file descriptor that poll() watches,
// and no handler runs. One at a time, on the thread that starts the children.
#pragma once

#include <signal.h>
#include <sys/types.h>

#include <initializer_list>
#include <optional>
#include <string>

#include "core/base/result.h"
#include "os/fd.h"

namespace yoke {

// "SIGKILL"; "signal 99" for a number without a name.
std::string signal_name(int number);

struct ReceivedSignal {
  int number = 0;
  pid_t sender = 0;  // 0: the kernel, such as Ctrl-C at the terminal
};

class SignalQueue {
 public:
  // Signals that are ignored when it starts stay ignored: that is what nohup asks for.
  static Result<SignalQueue> open(std::initializer_list<int> numbers);
  SignalQueue(SignalQueue&& other) noexcept;
  SignalQueue& operator=(SignalQueue&&) = delete;
  ~SignalQueue();  // the signals are delivered as before; those not read are delivered now

  int fd() const { return fd_.get(); }
  // The next one that waits, without blocking.
  std::optional<ReceivedSignal> read();
  // The mask from before, which children want back.
  const sigset_t& original_mask() const { return original_mask_; }

 private:
  SignalQueue(Fd fd, const sigset_t& mask) : fd_(std::move(fd)), original_mask_(mask) {}

  Fd fd_;
  sigset_t original_mask_{};
};

}  // namespace yoke
