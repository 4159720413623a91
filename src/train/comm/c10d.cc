#include "train/comm/c10d.h"

#include <ATen/ATen.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <numeric>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#ifdef USE_C10D_NCCL
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

#include "core/base/text.h"
#include "os/memory_limit.h"
#include "os/port.h"
#include "os/shared_mapping.h"
#include "train/comm/hosts.h"
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

class BackendWork final : public Work {
 public:
  BackendWork(c10::intrusive_ptr<c10d::Work> work, Seconds timeout) : work_(std::move(work)), timeout_(timeout) {}

  Result<void> wait() override {
    auto began = std::chrono::steady_clock::now();
    try {
      work_->wait(to_milliseconds(timeout_));
      over_ = true;  // also when a GPU still works on it: what follows there comes after
      return {};
    } catch (const std::exception& e) {
      bool late = std::chrono::steady_clock::now() - began >= to_milliseconds(timeout_) * 9 / 10;
      return fail(late ? ErrorKind::timeout : ErrorKind::failed, first_line(e));
    }
  }

  bool done() override { return over_ || work_->isCompleted(); }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  Seconds timeout_;
  bool over_ = false;
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

c10::intrusive_ptr<c10d::Work> start_backend(c10d::Backend& backend, const Collective& c) {
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

// A process group of libtorch. Who it is made for says what its errors are about, and makes subgroups.
class BackendCommunicator final : public Communicator {
 public:
  BackendCommunicator(const std::string& group, int rank, int size, c10::intrusive_ptr<c10d::Backend> backend,
                      Seconds timeout)
      : Communicator(group, rank, size), backend_(std::move(backend)), timeout_(timeout) {}

  Result<std::unique_ptr<Communicator>> subgroup(const std::string& name, const std::vector<int>&) override {
    return fail(ErrorKind::failed, "no subgroup " + name + " of a process group");
  }

  // Others need not wait until their timeouts.
  void gives_up_for(int) override { backend_->abort(); }

 private:
  Result<WorkPtr> start(Collective collective) override {
    try {
      return std::make_unique<BackendWork>(start_backend(*backend_, collective), timeout_);
    } catch (const std::exception& e) {
      return fail(ErrorKind::failed, "it could not start: " + first_line(e));
    }
  }

  c10::intrusive_ptr<c10d::Backend> backend_;
  Seconds timeout_;
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

// The number of each rank's host.
Result<std::vector<int>> hosts_of(const World& world, const Exchange& exchange) {
  YOKE_TRY(std::vector<std::string> names, exchange(world.host.empty() ? host_identity() : world.host));
  std::vector<int> hosts;
  for (const std::string& name : names)
    hosts.push_back(static_cast<int>(std::find(names.begin(), names.end(), name) - names.begin()));
  return hosts;
}

// This host's ranks in memory that they share; null on every rank when that is not possible on some host.
Result<std::unique_ptr<Communicator>> share_memory(const World& world, const std::string& group, Seconds timeout,
                                                   const std::vector<int>& hosts,
                                                   const c10::intrusive_ptr<c10d::Store>& store) {
  int host = hosts[static_cast<std::size_t>(world.rank)], place = 0;
  std::vector<int> ranks;
  for (int r = 0; r < world.size; ++r) {
    if (hosts[static_cast<std::size_t>(r)] != host) continue;
    if (r == world.rank) place = static_cast<int>(ranks.size());
    ranks.push_back(r);
  }
  auto of_host = c10::make_intrusive<c10d::PrefixStore>(fmt::format("host/{}", host), store);
  YOKE_TRY(auto local,
           process_group(group, place, ranks, timeout, exchange_over(of_host, place, static_cast<int>(ranks.size()))));
  auto of_all = c10::make_intrusive<c10d::PrefixStore>("shared", store);
  YOKE_TRY(std::vector<std::string> answers,
           exchange_over(of_all, world.rank, world.size)(local != nullptr ? "shared" : "not"));
  if (std::count(answers.begin(), answers.end(), "shared") != world.size) return nullptr;
  return local;
}

}  // namespace

Result<std::unique_ptr<Communicator>> connect(const World& world, const std::string& group, Transport transport,
                                              Seconds timeout) {
  // Gloo and the store write to sockets whose other end may have died, and count on Python having ignored the signal.
  if (struct sigaction now{}; ::sigaction(SIGPIPE, nullptr, &now) == 0 && now.sa_handler == SIG_DFL)
    std::signal(SIGPIPE, SIG_IGN);
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
    auto shared = std::make_shared<HostsWorld>();
    shared->hosts.resize(static_cast<std::size_t>(world.size));
    shared->timeout = timeout;
    std::unique_ptr<Communicator> local;
    if (transport == Transport::cpu) {
      YOKE_TRY(shared->hosts, hosts_of(world, exchange_over(store, world.rank, world.size)));
      YOKE_TRY(local, share_memory(world, group, timeout, shared->hosts, store));
      if (local != nullptr && local->size() == world.size) {
        // Rank 0 hosts the store: it must not leave before all have read the last answers.
        YOKE_TRY_VOID(local->barrier("start"));
        return local;
      }
    }
    Meeting meeting{transport, world.local_size == world.size, timeout};
    shared->network = [store, meeting](const std::string& key, const std::string& name, int rank,
                                       int size) -> Result<std::unique_ptr<Communicator>> {
      auto own = c10::make_intrusive<c10d::PrefixStore>(key, store);
      YOKE_TRY(auto backend, make_backend(meeting, own, rank, size));
      return std::make_unique<BackendCommunicator>(name, rank, size, std::move(backend), meeting.timeout);
    };
    shared->board =
        std::make_shared<ProgressBoard>(store, world.rank, world.size, world.rank == 0 && !world.agent_store);
    std::vector<int> all(static_cast<std::size_t>(world.size));
    std::iota(all.begin(), all.end(), 0);
    YOKE_TRY(auto communicator, hosts_group(group, world.rank, all, std::move(local), "all", std::move(shared)));
    if (transport == Transport::cpu) YOKE_TRY_VOID(communicator->barrier("start"));  // as above
    return communicator;
  } catch (const std::exception& e) {
    if (auto refused = refusal(e)) return tl::unexpected(*refused);
    return fail(
        ErrorKind::timeout,
        fmt::format("rank {} of {} could not meet the others at {}: {}", world.rank, world.size, where, first_line(e)),
        "are all ranks running, and is that address and port reachable from all of them?");
  }
}

}  // namespace yoke
