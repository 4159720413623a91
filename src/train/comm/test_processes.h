// For tests: ranks as processes of this host, each a fork of the test program, with a shared-memory communicator.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <new>
#include <string>
#include <thread>
#include <vector>

#include "os/shared_mapping.h"
#include "train/comm/shared_memory.h"

namespace yoke {

// An Exchange through memory that was mapped before the forks.
class ExchangeBoard {
 public:
  explicit ExchangeBoard(int size) : size_(size), mapping_(*SharedMapping::create(sizeof(Slot) * rounds * size)) {
    for (int i = 0; i < rounds * size; ++i) new (&slot(i)) Slot;
  }

  Exchange of(int rank) {
    return [this, rank, round = 0](const std::string& mine) mutable -> Result<std::vector<std::string>> {
      Slot& own = slot(round * size_ + rank);
      std::strncpy(own.text, mine.c_str(), sizeof own.text - 1);
      own.ready.store(true);
      std::vector<std::string> all;
      for (int r = 0; r < size_; ++r) {
        while (!slot(round * size_ + r).ready.load()) std::this_thread::yield();
        all.emplace_back(slot(round * size_ + r).text);
      }
      ++round;
      return all;
    };
  }

 private:
  static constexpr int rounds = 8;
  struct Slot {
    std::atomic<bool> ready{false};
    char text[255] = {};
  };
  Slot& slot(int i) { return reinterpret_cast<Slot*>(mapping_.data())[i]; }

  int size_;
  SharedMapping mapping_;
};

// Starts a process for each rank; its exit code is what body returns.
inline std::vector<pid_t> start_processes(int size, Seconds timeout, const std::function<int(Communicator&)>& body) {
  ExchangeBoard board(size);
  std::vector<pid_t> pids;
  for (int r = 0; r < size; ++r) {
    pid_t pid = fork();
    if (pid != 0) {
      pids.push_back(pid);
      continue;
    }
    int code = 99;
    if (auto communicator = process_group("data", r, size, timeout, board.of(r)); communicator && *communicator) {
      code = body(**communicator);
      communicator->reset();
    }
    _exit(code);
  }
  return pids;
}

// Exit code, or -signal.
inline int wait_for(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

inline std::vector<int> run_processes(int size, Seconds timeout, const std::function<int(Communicator&)>& body) {
  std::vector<int> codes;
  for (pid_t pid : start_processes(size, timeout, body)) codes.push_back(wait_for(pid));
  return codes;
}

}  // namespace yoke
