// For tests: ranks as processes of this host, each a fork of the test program, with a shared-memory communicator.
#pragma once

#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <functional>
#include <new>
#include <numeric>
#include <string>
#include <thread>
#include <vector>

#include "os/port.h"
#include "os/shared_mapping.h"
#include "train/comm/c10d.h"
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

// Starts a process for each rank, which connects; its exit code is what body returns.
inline std::vector<pid_t> start_ranks(int size,
                                      const std::function<Result<std::unique_ptr<Communicator>>(int rank)>& connect_as,
                                      const std::function<int(Communicator&)>& body) {
  std::vector<pid_t> pids;
  for (int r = 0; r < size; ++r) {
    pid_t pid = fork();
    if (pid != 0) {
      pids.push_back(pid);
      continue;
    }
    int code = 99;
    if (auto communicator = connect_as(r); communicator && *communicator) {
      code = body(**communicator);
      communicator->reset();
    }
    _exit(code);
  }
  return pids;
}

// The ranks share memory.
inline std::vector<pid_t> start_processes(int size, Seconds timeout, const std::function<int(Communicator&)>& body) {
  ExchangeBoard board(size);
  std::vector<int> numbers(static_cast<std::size_t>(size));
  std::iota(numbers.begin(), numbers.end(), 0);
  return start_ranks(
      size, [&](int rank) { return process_group("data", rank, numbers, timeout, board.of(rank)); }, body);
}

// The ranks believe to be on these hosts, given by rank.
inline std::vector<pid_t> start_on_hosts(const std::vector<std::string>& hosts, Seconds timeout,
                                         const std::function<int(Communicator&)>& body) {
  int size = static_cast<int>(hosts.size()), port = free_tcp_port().value();
  auto connect_as = [&](int rank) {
    World world{.rank = rank, .size = size, .master_port = port, .host = hosts[static_cast<std::size_t>(rank)]};
    auto communicator = connect(world, "data", Transport::cpu, timeout);
    if (!communicator) fmt::print(stderr, "rank {}: {}\n", rank, communicator.error().what);
    return communicator;
  };
  return start_ranks(size, connect_as, body);
}

// Exit code, or -signal.
inline int wait_for(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

inline std::vector<int> wait_for(const std::vector<pid_t>& pids) {
  std::vector<int> codes;
  for (pid_t pid : pids) codes.push_back(wait_for(pid));
  return codes;
}

inline std::vector<int> run_processes(int size, Seconds timeout, const std::function<int(Communicator&)>& body) {
  return wait_for(start_processes(size, timeout, body));
}

}  // namespace yoke
