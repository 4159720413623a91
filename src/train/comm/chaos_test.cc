// Ranks that die, stop or are late at any moment of bare collectives of every kind, size and type, in shared memory and
// across hosts: nobody hangs past the timeout, what completes is right, and it is always the right rank that is named.
// `make chaos` does it two hundred times, `make test` a few.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include <chrono>
#include <csignal>
#include <random>
#include <thread>

#include "train/comm/test_collectives.h"
#include "train/comm/test_processes.h"

namespace yoke {
namespace {

constexpr double timeout = 3;  // seconds
constexpr int collectives = 150;

enum class Event { kill, stop, late };

struct Case {
  unsigned seed;
  std::vector<std::string> hosts;  // empty: one, whose ranks share memory
  int ranks, victim;
  Event event;
  int after_us;
};

struct Started {
  WorkPtr work;
  at::Tensor result, expected;
};

// Element i of what a rank gives to a collective: small, so that every type holds the sums.
at::Tensor values(int collective, int rank, std::int64_t numel, at::ScalarType type) {
  return ((at::arange(numel, at::kInt) * 7 + rank * 3 + collective) % 11).to(type);
}

// Starts the next collective of a sequence that the random numbers determine, the same on all ranks.
Result<Started> start_one(Communicator& c, int i, std::mt19937& random) {
  const at::ScalarType types[] = {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kLong};
  const std::int64_t sizes[] = {40, 3'000, 60'000};
  at::ScalarType type = types[random() % 5];
  std::int64_t part = 1 + random() % sizes[random() % 3], n = c.size(), me = c.rank();
  bool shared = random() % 2 == 0;
  unsigned kind = random() % 5, other = random();
  auto empty = [&](std::int64_t numel) {
    return shared ? c.shared_empty(numel, at::dtype(type)) : at::empty({numel}, type);
  };
  auto filled = [&](std::int64_t numel) { return empty(numel).copy_(values(i, c.rank(), numel, type)); };
  auto of_all = [&](std::int64_t numel, const std::function<at::Tensor(at::Tensor)>& choose) {
    std::vector<at::Tensor> all;
    for (int r = 0; r < c.size(); ++r) all.push_back(choose(values(i, r, numel, type)));
    return all;
  };
  auto whole = [](at::Tensor t) { return t; };
  auto mine = [&](const at::Tensor& t) { return t.narrow(0, me * part, part); };
  std::string name = fmt::format("collective {}", i);
  Started s;
  Result<WorkPtr> work;
  switch (kind) {
    case 0: {
      ReduceOp op = other % 3 == 0 ? ReduceOp::max : ReduceOp::sum;
      s.result = filled(part);
      at::Tensor all = at::stack(of_all(part, whole)).to(at::kDouble);
      s.expected = (op == ReduceOp::sum ? all.sum(0) : all.amax(0)).to(type);
      work = c.all_reduce(name, s.result, op);
      break;
    }
    case 1: {
      s.result = empty(part);
      s.expected = at::stack(of_all(part * n, mine)).to(at::kDouble).sum(0).to(type);
      work = c.reduce_scatter(name, s.result, filled(part * n));
      break;
    }
    case 2:
      s.result = empty(part * n);
      s.expected = at::cat(of_all(part, whole));
      work = c.all_gather(name, s.result, filled(part));
      break;
    case 3: {
      int root = static_cast<int>(other % static_cast<unsigned>(c.size()));
      s.result = filled(part);
      s.expected = values(i, root, part, type);
      work = c.broadcast(name, s.result, root);
      break;
    }
    default:
      s.result = empty(part * n);
      s.expected = at::cat(of_all(part * n, mine));
      work = c.all_to_all(name, s.result, filled(part * n));
  }
  YOKE_TRY(s.work, std::move(work));
  return s;
}

// All of them, some at the same time and each rank waiting in its own order. False: a result is wrong.
Result<bool> run_all(const Case& k, Communicator& c) {
  at::set_num_threads(1);
  std::mt19937 common(k.seed), own(k.seed + 1000U + static_cast<unsigned>(c.rank()));
  int late_at = k.event == Event::late && c.rank() == k.victim ? k.after_us % collectives : -1;
  std::vector<Started> under_way;
  for (int i = 0; i < collectives || !under_way.empty();) {
    if (i == late_at) std::this_thread::sleep_for(std::chrono::microseconds(k.after_us));
    if (i < collectives && under_way.size() < 4) {
      YOKE_TRY(Started started, start_one(c, i++, common));
      under_way.push_back(std::move(started));
      continue;
    }
    auto chosen = under_way.begin() + static_cast<std::ptrdiff_t>(own() % under_way.size());
    YOKE_TRY_VOID(chosen->work->wait());
    if (!at::equal(chosen->result, chosen->expected)) return false;
    under_way.erase(chosen);
  }
  YOKE_TRY_VOID(c.barrier("end"));
  return true;
}

// 0: right; else what was wrong.
int survivor(const Case& k, Communicator& c, std::atomic<int>& over) {
  auto began = std::chrono::steady_clock::now();
  auto right = run_all(k, c);
  double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  ++over;
  if (right) {
    // The store ends with rank 0, and others may still want to know who died at the last moment.
    while (c.rank() == 0 && over < k.ranks - 1) std::this_thread::yield();
    return *right ? 0 : 1;
  }
  const std::string& what = right.error().what;
  bool named = what.ends_with(fmt::format("rank {} ended before it", k.victim));
  for (const char* how : {"", " (stopped by a signal)", " (no longer answers)"})
    named = named || what.ends_with(fmt::format("absent ranks: {}{}", k.victim, how));
  if (k.event == Event::late || !named) {
    fmt::print(stderr, "rank {} says: {}\n", c.rank(), what);
    return k.event == Event::late ? 2 : 3;
  }
  return seconds < 6 * timeout ? 0 : 4;
}

TEST(CollectiveChaos, TheRightRankIsNamedAndNobodyHangs) {
  const int count = std::getenv("YOKE_WHOLE_CHAOS") != nullptr ? 200 : 9;
  const std::vector<std::string> several[] = {
      {"a", "a", "b", "b"}, {"a", "b"}, {"a", "a", "b"}, {"a", "a", "b", "b", "c", "c"}};
  std::mt19937 random(11);
  auto below = [&](int n) { return static_cast<int>(random() % static_cast<unsigned>(n)); };
  int struck = 0;
  for (int i = 0; i < count; ++i) {
    Case k{.seed = static_cast<unsigned>(i), .ranks = 2 + below(5), .event = static_cast<Event>(i % 3)};
    if (i % 4 == 3) {
      k.hosts = several[below(4)];
      k.ranks = static_cast<int>(k.hosts.size());
    }
    k.victim = below(k.ranks);
    k.after_us = below(100'000);
    SCOPED_TRACE(fmt::format("case {}: {} of {} ranks{}, event {}, after {} us", i, k.victim, k.ranks,
                             k.hosts.empty() ? "" : " on several hosts", static_cast<int>(k.event), k.after_us));
    auto mapping = SharedMapping::create(sizeof(std::atomic<int>));
    ASSERT_TRUE(mapping);
    auto* over = new (mapping->data()) std::atomic<int>(0);
    auto body = [&](Communicator& c) {
      if (c.rank() != k.victim) return survivor(k, c, *over);
      std::thread event([&k] {
        std::this_thread::sleep_for(std::chrono::microseconds(k.after_us));
        if (k.event != Event::late) kill(getpid(), k.event == Event::kill ? SIGKILL : SIGSTOP);
      });
      event.detach();
      auto right = run_all(k, c);
      ++*over;
      return right && *right ? 0 : 5;  // it may have finished before anything happened
    };
    auto pids = k.hosts.empty() ? start_processes(k.ranks, Seconds(timeout), body)
                                : start_on_hosts(k.hosts, Seconds(timeout), body);
    pid_t victim_pid = pids[static_cast<std::size_t>(k.victim)];
    for (int r = 0; r < k.ranks; ++r)
      EXPECT_EQ(r == k.victim ? 0 : wait_for(pids[static_cast<std::size_t>(r)]), 0) << "rank " << r;
    if (k.event == Event::stop) kill(victim_pid, SIGKILL);
    int victim = wait_for(victim_pid);
    struck += victim == -SIGKILL ? 1 : 0;
    EXPECT_TRUE(victim == 0 || (victim == -SIGKILL && k.event != Event::late)) << victim;
  }
  EXPECT_GE(struck, count / 3);  // of two thirds: most are hit in the middle
}

}  // namespace
}  // namespace yoke
