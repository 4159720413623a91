#include "train/comm/c10d.h"

#include <ATen/ATen.h>
#include <torch/version.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#ifdef USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include "core/base/text.h"
#include "os/memory_limit.h"
#include "os/port.h"
#include "train/comm/shared_memory.h"

// From 2.14 on the flat collectives have new names, and the old ones are deprecated.
#define YOKE_TORCH_AT_LEAST(major, minor) \
  (TORCH_VERSION_MAJOR > (major) || (TORCH_VERSION_MAJOR == (major) && TORCH_VERSION_MINOR >= (minor)))

namespace yoke {
namespace {

using std::chrono::milliseconds;

milliseconds to_milliseconds(Seconds s) { return milliseconds(static_cast<std::int64_t>(s.value * 1e3)); }

// The first line of an exception's text: c10 appends a stack of frames.
std::string first_line(const std::exception& e) {
  std::string text = e.what();
  text = text.substr(0, text.find('\n'));
  if (text.starts_with('[') && text.find("] ") != std::string::npos)
    text = text.substr(text.find("] ") + 2);                    // a place in Gloo's source
  return std::string(trim(text.substr(0, text.find("GLHF"))));  // what Gloo wishes to people who lose a peer
}

// Tells the other ranks, through the store, how far this rank has come, so that a rank whose collective does not finish
// can name those that never started it. A thread of its own publishes twice a second; starting a collective costs one
// atomic store.
class ProgressBoard {
 public:
  ProgressBoard(c10::intrusive_ptr<c10d::Store> store, int rank, int size)
      : store_(std::move(store)), rank_(rank), size_(size) {
    thread_ = std::thread([this] { publish_loop(); });
  }

  ~ProgressBoard() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    thread_.join();
  }

  void started(std::int64_t number) { started_.store(number, std::memory_order_relaxed); }

  // "absent ranks: 1, 3", or why that is not known.
  std::string absent(std::int64_t number, bool late) {
    if (late) std::this_thread::sleep_for(2 * interval);  // ranks that came at the last moment have said so by then
    std::vector<std::string> ranks;
    try {
      for (int r = 0; r < size_; ++r) {
        if (r == rank_) continue;
        bool there = store_->check({key(r)});
        if (there) {
          std::vector<std::uint8_t> value = store_->get(key(r));
          there = parse_integer(std::string(value.begin(), value.end())).value_or(-1) >= number;
        }
        if (!there) ranks.push_back(std::to_string(r));
      }
    } catch (const std::exception&) {
      return "the store at rank 0 no longer answers: rank 0 is gone";
    }
    if (ranks.empty()) return "all ranks had started it";
    return "absent ranks: " + join(ranks, ", ");
  }

 private:
  static constexpr milliseconds interval{500};

  std::string key(int rank) const { return "progress/" + std::to_string(rank); }

  void publish_loop() {
    std::int64_t published = -1;
    std::unique_lock lock(mutex_);
    while (!wake_.wait_for(lock, interval, [this] { return stop_; })) {
      std::int64_t now = started_.load(std::memory_order_relaxed);
      if (now == published) continue;
      try {
        store_->set(key(rank_), std::to_string(now));
        published = now;
      } catch (const std::exception&) {
        return;  // rank 0 is gone; the collectives will say so
      }
    }
  }

  c10::intrusive_ptr<c10d::Store> store_;
  int rank_, size_;
  std::atomic<std::int64_t> started_{-1};
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  std::thread thread_;
};

class C10dWork final : public Work {
 public:
  C10dWork(c10::intrusive_ptr<c10d::Work> work, std::shared_ptr<ProgressBoard> board, Collective collective,
           std::string group, Seconds timeout)
      : work_(std::move(work)),
        board_(std::move(board)),
        collective_(std::move(collective)),
        group_(std::move(group)),
        timeout_(timeout) {}

  Result<void> wait() override {
    auto began = std::chrono::steady_clock::now();
    try {
      work_->wait(to_milliseconds(timeout_));
      return {};
    } catch (const std::exception& e) {
      bool late = std::chrono::steady_clock::now() - began >= to_milliseconds(timeout_) * 9 / 10;
      std::string absent = board_->absent(collective_.number, late);
      std::string what = describe(collective_, group_);
      if (late)
        return fail(
            ErrorKind::timeout,
            fmt::format("{} did not finish within {}; {}", what, format_seconds(timeout_.value), absent),
            "those ranks are slow, stuck or took another path; raise train.collective_timeout if they are slow");
      return fail(ErrorKind::failed, fmt::format("{} failed: {}; {}", what, first_line(e), absent),
                  "a peer has ended; see the first error of the absent ranks");
    }
  }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  std::shared_ptr<ProgressBoard> board_;
  Collective collective_;
  std::string group_;
  Seconds timeout_;
};

c10d::ReduceOp to_c10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::max:
      return c10d::ReduceOp::MAX;
    case ReduceOp::min:
      return c10d::ReduceOp::MIN;
  }
  return c10d::ReduceOp::SUM;
}

c10::intrusive_ptr<c10d::Work> start_on(c10d::Backend& backend, const Collective& c) {
  std::vector<at::Tensor> tensors{c.output};
  at::Tensor output = c.output, input = c.input;
  switch (c.kind) {
    case Collective::Kind::all_reduce: {
      c10d::AllreduceOptions options;
      options.reduceOp = to_c10d(c.op);
      return backend.allreduce(tensors, options);
    }
    case Collective::Kind::broadcast: {
      c10d::BroadcastOptions options;
      options.rootRank = c.root;
      return backend.broadcast(tensors, options);
    }
#if YOKE_TORCH_AT_LEAST(2, 14)
    case Collective::Kind::all_gather:
      return backend.all_gather_single(output, input);
    case Collective::Kind::reduce_scatter:
      return backend.reduce_scatter_single(output, input);
#else
    case Collective::Kind::all_gather:
      return backend._allgather_base(output, input);
    case Collective::Kind::reduce_scatter:
      return backend._reduce_scatter_base(output, input);
#endif
    case Collective::Kind::all_to_all: {
      std::vector<std::int64_t> equal;
#if YOKE_TORCH_AT_LEAST(2, 14)
      return backend.all_to_all_single(output, input, equal, equal);
#else
      return backend.alltoall_base(output, input, equal, equal);
#endif
    }
    case Collective::Kind::barrier:
      break;
  }
  return backend.barrier();
}

struct Meeting {
  c10::intrusive_ptr<c10d::Store> store;
  Transport transport;
  bool one_host;
  Seconds timeout;
};

Result<c10::intrusive_ptr<c10d::Backend>> make_backend(const Meeting& meeting,
                                                       const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                       int size) {
  if (meeting.transport != Transport::nccl) {
    auto options = c10d::ProcessGroupGloo::Options::create(to_milliseconds(meeting.timeout));
    options->devices.push_back(meeting.one_host ? c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1")
                                                : c10d::ProcessGroupGloo::createDefaultDevice());
    options->threads = 1;  // buckets finish in the order in which they were started, and the cores are for computation
    return c10::make_intrusive<c10d::ProcessGroupGloo>(store, rank, size, options);
  }
#ifdef USE_C10D_NCCL
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = to_milliseconds(meeting.timeout);
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
#else
  return fail(ErrorKind::environment, "this build has no NCCL", "configure with the preset `cuda`");
#endif
}

class C10dCommunicator final : public Communicator {
 public:
  static Result<std::unique_ptr<Communicator>> make(const std::string& group, int rank, int size, Meeting meeting) {
    YOKE_TRY(auto backend, make_backend(meeting, meeting.store, rank, size));
    return std::unique_ptr<Communicator>(
        new C10dCommunicator(group, rank, size, std::move(backend), std::move(meeting)));
  }

  Result<std::unique_ptr<Communicator>> subgroup(const std::string& name, const std::vector<int>& ranks) override {
    auto me = std::find(ranks.begin(), ranks.end(), rank());
    YOKE_CHECK(me != ranks.end(), "group {}: rank {} is not in it", name, rank());
    Meeting meeting = meeting_;
    meeting.store = c10::make_intrusive<c10d::PrefixStore>(fmt::format("{}/{}/", name, ranks.front()), meeting_.store);
    try {
      return make(name, static_cast<int>(me - ranks.begin()), static_cast<int>(ranks.size()), std::move(meeting));
    } catch (const std::exception& e) {
      return fail(ErrorKind::failed, fmt::format("rank {} cannot join the group {}: {}", rank(), name, first_line(e)),
                  "are all ranks running?");
    }
  }

 private:
  C10dCommunicator(std::string group, int rank, int size, c10::intrusive_ptr<c10d::Backend> backend, Meeting meeting)
      : Communicator(std::move(group), rank, size),
        backend_(std::move(backend)),
        meeting_(std::move(meeting)),
        board_(std::make_shared<ProgressBoard>(meeting_.store, rank, size)) {}

  Result<WorkPtr> start(Collective collective) override {
    board_->started(collective.number);
    try {
      c10::intrusive_ptr<c10d::Work> work = start_on(*backend_, collective);
      return std::make_unique<C10dWork>(std::move(work), board_, std::move(collective), group(), meeting_.timeout);
    } catch (const std::exception& e) {
      return fail(ErrorKind::failed,
                  fmt::format("{} could not start: {}", describe(collective, group()), first_line(e)),
                  "a peer has ended; see the first error of the other ranks");
    }
  }

  c10::intrusive_ptr<c10d::Backend> backend_;
  Meeting meeting_;
  std::shared_ptr<ProgressBoard> board_;
};

// Every rank's text to every rank, through the store.
Exchange exchange_over(const c10::intrusive_ptr<c10d::Store>& store, int rank, int size) {
  return [store, rank, size, round = 0](const std::string& mine) mutable -> Result<std::vector<std::string>> {
    std::string prefix = fmt::format("exchange/{}/", round++);
    store->set(prefix + std::to_string(rank), mine);
    std::vector<std::string> all;
    for (int r = 0; r < size; ++r) all.push_back(store->get_to_str(prefix + std::to_string(r)));
    return all;
  };
}

}  // namespace

Result<std::unique_ptr<Communicator>> connect(const World& world, const std::string& group, Transport transport,
                                              Seconds timeout) {
  std::string where = fmt::format("{}:{}", world.master_addr, world.master_port);
  try {
    c10d::TCPStoreOptions options;
    options.port = static_cast<std::uint16_t>(world.master_port);
    options.isServer = world.rank == 0 && !world.agent_store;
    options.waitWorkers = false;
    options.timeout = to_milliseconds(timeout);
    // A store's client that comes too early waits half a second before it tries again.
    if (!options.isServer) await_listener(world.master_addr, world.master_port, timeout.value);
    auto tcp = c10::make_intrusive<c10d::TCPStore>(world.master_addr, options);
    auto store = c10::make_intrusive<c10d::PrefixStore>(fmt::format("yoke/{}/{}", group, world.attempt), tcp);
    if (transport == Transport::cpu) {
      YOKE_TRY(auto shared,
               process_group(group, world.rank, world.size, timeout, exchange_over(store, world.rank, world.size)));
      if (shared != nullptr) {
        // Rank 0 hosts the store: it must not leave before all have read the last answers.
        YOKE_TRY_VOID(shared->barrier("start"));
        return shared;
      }
    }
    return C10dCommunicator::make(group, world.rank, world.size,
                                  {store, transport, world.local_size == world.size, timeout});
  } catch (const std::exception& e) {
    if (auto refused = refusal(e)) return tl::unexpected(*refused);
    return fail(
        ErrorKind::timeout,
        fmt::format("rank {} of {} could not meet the others at {}: {}", world.rank, world.size, where, first_line(e)),
        "are all ranks running, and is that address and port reachable from all of them?");
  }
}

}  // namespace yoke
