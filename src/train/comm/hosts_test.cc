#include "train/comm/hosts.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <thread>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include "train/comm/test_collectives.h"
#include "train/comm/test_processes.h"

namespace yoke {
namespace {

using Hosts = std::vector<std::string>;

std::vector<int> run_on_hosts(const Hosts& hosts, const std::function<int(Communicator&)>& body) {
  return wait_for(start_on_hosts(hosts, Seconds(60), body));
}

std::vector<int> zeros(const Hosts& hosts) { return std::vector<int>(hosts.size(), 0); }

// 2 x 2, 3 x 2, 2 x 3, and what goes through Gloo alone: unequal hosts, ranks of a host that are not neighbours.
const Hosts all_hosts[] = {{"a", "a", "b", "b"},
                           {"a", "a", "b", "b", "c", "c"},
                           {"a", "a", "a", "b", "b", "b"},
                           {"a", "a", "b"},
                           {"a", "b", "a", "b"}};

TEST(Hosts, EveryCollective) {
  for (const Hosts& hosts : all_hosts) {
    auto codes = run_on_hosts(hosts, [](Communicator& c) {
      at::set_num_threads(1);
      for (std::int64_t part : part_sizes)
        for (at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble, at::kLong}) {
          auto plain = [&](std::int64_t numel) { return at::empty({numel}, type); };
          auto shared = [&](std::int64_t numel) { return c.shared_empty(numel, at::dtype(type)); };
          if (!collectives_are_right(c, part, type, plain)) return 1;
          if (!collectives_are_right(c, part, type, shared)) return 2;
        }
      return 0;
    });
    EXPECT_EQ(codes, zeros(hosts)) << testing::PrintToString(hosts);
  }
}

// Sums that are rounded: near the plain one, and the same bits everywhere.
TEST(Hosts, ResultsHaveTheSameBitsOnAllRanks) {
  for (const Hosts& hosts : all_hosts) {
    auto codes = run_on_hosts(hosts, [](Communicator& c) {
      at::set_num_threads(1);
      for (at::ScalarType type : {at::kFloat, at::kBFloat16})
        for (std::int64_t numel : {7, 50'001}) {
          auto values = [&](int rank) {
            auto generator = at::make_generator<at::CPUGeneratorImpl>(static_cast<std::uint64_t>(rank));
            return at::empty({numel}).normal_(0, 1, generator).to(type);
          };
          at::Tensor sum = values(c.rank()), expected = at::zeros({numel}, at::kDouble), size = expected.clone();
          for (int r = 0; r < c.size(); ++r) expected += values(r), size += values(r).abs();
          if (!finish(c.all_reduce("sum", sum))) return 1;
          double unit = type == at::kFloat ? 1e-6 : 1e-2;
          if (!((sum.to(at::kDouble) - expected).abs() <= unit * size).all().item<bool>()) return 2;
          at::Tensor every = at::empty({c.size() * numel}, type);
          if (!finish(c.all_gather("sums", every, sum))) return 3;
          for (const at::Tensor& theirs : every.chunk(c.size()))
            if (!at::equal(theirs, sum)) return 4;
        }
      return c.barrier("end") ? 0 : 5;
    });
    EXPECT_EQ(codes, zeros(hosts)) << testing::PrintToString(hosts);
  }
}

// More under way than the shared memory has room for, each rank waiting in its own order.
TEST(Hosts, ManyUnderWay) {
  Hosts hosts{"a", "a", "b", "b"};
  auto codes = run_on_hosts(hosts, [](Communicator& c) {
    at::set_num_threads(1);
    std::vector<at::Tensor> tensors;
    std::vector<WorkPtr> works;
    for (int i = 0; i < 100; ++i) {
      tensors.push_back(at::full({1000 + i}, c.rank() + i, at::kLong));
      auto work = c.all_reduce("x", tensors.back());
      if (!work) return 1;
      works.push_back(*std::move(work));
    }
    for (std::size_t i = 0; i < works.size(); ++i)
      if (!works[c.rank() % 2 == 0 ? i : works.size() - 1 - i]->wait()) return 2;
    for (int i = 0; i < 100; ++i)
      if (!at::equal(tensors[static_cast<std::size_t>(i)], at::full({1000 + i}, 4 * i + 6, at::kLong))) return 3;
    return c.barrier("end") ? 0 : 4;
  });
  EXPECT_EQ(codes, zeros(hosts));
}

TEST(Hosts, Subgroups) {
  Hosts hosts{"a", "a", "a", "b", "b", "b"};
  auto codes = run_on_hosts(hosts, [](Communicator& c) {
    at::set_num_threads(1);
    int r = c.rank();
    // On one host; one of each host; two of each; unequal.
    auto inside = c.subgroup("inside", {r / 3 * 3, r / 3 * 3 + 1, r / 3 * 3 + 2});
    auto across = c.subgroup("across", {r % 3, r % 3 + 3});
    auto square = r % 3 < 2 ? c.subgroup("square", {0, 1, 3, 4}) : c.subgroup("square", {2, 5});
    auto unequal = r < 4 ? c.subgroup("unequal", {0, 1, 2, 3}) : c.subgroup("unequal", {4, 5});
    if (!inside || !across || !square || !unequal) return 1;
    if ((*across)->rank() != r / 3 || (*square)->size() != (r % 3 < 2 ? 4 : 2)) return 2;
    auto nested = (*unequal)->subgroup("nested", r < 2   ? std::vector{0, 1}
                                                 : r < 4 ? std::vector{2, 3}
                                                         : std::vector{0, 1});
    if (!nested) return 3;
    auto plain = [](std::int64_t numel) { return at::empty({numel}); };
    for (auto* group : {&inside, &across, &square, &unequal, &nested})
      for (std::int64_t part : part_sizes)
        if (!collectives_are_right(***group, part, at::kFloat, plain)) return 4;
    if (!c.barrier("end")) return 5;
    // What lies on one host needs no network.
    for (auto* group : {&across, &square, &unequal}) (**group)->gives_up_for(-1);
    c.gives_up_for(-1);
    return collectives_are_right(**inside, 3000, at::kFloat, plain) ? 0 : 6;
  });
  EXPECT_EQ(codes, zeros(hosts));
}

// Whether an error names this rank and no other.
bool names(const Error& error, int rank) {
  for (const std::string& end :
       {fmt::format("absent ranks: {}", rank), fmt::format("absent ranks: {} (no longer answers)", rank),
        fmt::format("absent ranks: {} (stopped by a signal)", rank), fmt::format("rank {} ended before it", rank)})
    if (error.what.ends_with(end)) return true;
  fmt::print(stderr, "it says: {}\n", error.what);
  return false;
}

// Something happens to one rank in the middle of collectives, also to the one that hosts the store.
TEST(Hosts, ARankThatStopsInTheMiddleIsNamed) {
  struct Case {
    Hosts hosts;
    int victim, event;
  };
  const Case cases[] = {{{"a", "a", "b", "b"}, 3, SIGKILL},
                        {{"a", "a", "b", "b"}, 2, SIGSTOP},
                        {{"a", "a", "b", "b"}, 0, SIGKILL},
                        {{"a", "a", "b", "b"}, 0, SIGSTOP},
                        {{"a", "a", "b"}, 1, SIGKILL}};
  auto began = std::chrono::steady_clock::now();
  std::vector<std::vector<pid_t>> started;  // all at the same time: most of it is waiting
  for (const Case& each : cases)
    started.push_back(start_on_hosts(each.hosts, Seconds(5), [&](Communicator& c) {
      at::set_num_threads(1);
      at::Tensor x = at::ones({300'000});
      for (int i = 0;; ++i) {
        if (c.rank() == each.victim && i == 3)
          std::thread([&each] {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
            kill(getpid(), each.event);
          }).detach();
        auto result = finish(c.all_reduce("x", x));
        if (!result) return names(result.error(), each.victim) ? 0 : 1;
      }
    }));
  for (std::size_t i = 0; i < started.size(); ++i) {
    SCOPED_TRACE(fmt::format("case {}", i));
    for (std::size_t r = 0; r < started[i].size(); ++r)
      EXPECT_EQ(static_cast<int>(r) == cases[i].victim ? 0 : wait_for(started[i][r]), 0) << "rank " << r;
    pid_t victim = started[i][static_cast<std::size_t>(cases[i].victim)];
    kill(victim, SIGKILL);
    EXPECT_EQ(wait_for(victim), -SIGKILL);
  }
  EXPECT_LT(std::chrono::steady_clock::now() - began, std::chrono::seconds(60));
}

TEST(Hosts, ALateRankIsNamedByItsNumberInTheWorld) {
  auto pids = start_on_hosts({"a", "a", "b", "b"}, Seconds(2), [](Communicator& c) {
    auto halves = c.subgroup("half", {c.rank() % 2, c.rank() % 2 + 2});
    if (!halves) return 1;
    at::Tensor x = at::ones({10});
    if (!finish(c.all_reduce("first", x)) || !finish((*halves)->all_reduce("second", x))) return 2;
    if (c.rank() == 3) {
      pause();  // alive, but nothing more comes from it
      return 3;
    }
    if (c.rank() == 1) {
      auto result = finish((*halves)->all_reduce("third", x));
      return !result && result.error().kind == ErrorKind::timeout &&
                     result.error().what ==
                         "all_reduce 'third' (number 1 of group half) did not finish within 2.0 s: absent ranks: 3"
                 ? 0
                 : 4;
    }
    auto result = finish(c.all_reduce("third", x));
    return !result && names(result.error(), 3) ? 0 : 5;
  });
  // Ranks 0 and 2 wait for 1, who gives up for 3, and for 3.
  for (int r : {0, 1, 2}) EXPECT_EQ(wait_for(pids[static_cast<std::size_t>(r)]), 0) << r;
  kill(pids[3], SIGKILL);
  EXPECT_EQ(wait_for(pids[3]), -SIGKILL);
}

// Shards on each host, copies between them: all name the one that died, whichever group they find it out in.
TEST(Hosts, AcrossGroupsTheDeadRankIsNamed) {
  auto pids = start_on_hosts({"a", "a", "b", "b"}, Seconds(20), [](Communicator& c) {
    int r = c.rank();
    auto shard = c.subgroup("shard", {r / 2 * 2, r / 2 * 2 + 1});
    auto replica = c.subgroup("replica", {r % 2, r % 2 + 2});
    if (!shard || !replica) return 1;
    at::Tensor x = at::ones({10'000}), part = at::ones({5'000});
    for (int i = 0;; ++i) {
      if (r == 3 && i == 5) raise(SIGKILL);
      Result<void> result = finish((*shard)->reduce_scatter("gradients", part, x));
      if (result) result = finish((*replica)->all_reduce("shards", part));
      if (!result) return names(result.error(), 3) ? 0 : 2;
    }
  });
  for (int r : {0, 1, 2}) EXPECT_EQ(wait_for(pids[static_cast<std::size_t>(r)]), 0) << r;
  EXPECT_EQ(wait_for(pids[3]), -SIGKILL);
}

// What crosses the network, counted in groups of threads that take its place.
TEST(Hosts, OneCopyOfAHostsDataCrossesTheNetwork) {
  constexpr int hosts = 3, locals = 2;
  auto world = std::make_shared<HostsWorld>();
  world->timeout = Seconds(60);
  for (int r = 0; r < hosts * locals; ++r) world->hosts.push_back(r / locals);
  std::mutex mutex;
  std::map<std::string, std::vector<std::unique_ptr<Communicator>>> networks;
  std::vector<Communicator*> wide(hosts * locals);
  std::vector<std::vector<std::unique_ptr<Communicator>>> memories;
  for (int h = 0; h < hosts; ++h) memories.push_back(thread_group("data", locals, Seconds(60)));
  auto store = c10::make_intrusive<c10d::HashStore>();
  std::vector<std::thread> threads;
  for (int r = 0; r < hosts * locals; ++r)
    threads.emplace_back([&, r] {
      HostsWorld own = *world;
      own.board = std::make_shared<ProgressBoard>(store, r, hosts * locals, false);
      own.network = [&](const std::string& key, const std::string& name, int rank,
                        int size) -> Result<std::unique_ptr<Communicator>> {
        std::lock_guard lock(mutex);
        auto& group = networks[key];
        if (group.empty()) group = thread_group(name, size, Seconds(60));
        wide[static_cast<std::size_t>(r)] = group[static_cast<std::size_t>(rank)].get();
        return std::move(group[static_cast<std::size_t>(rank)]);
      };
      auto c = hosts_group("data", r, {0, 1, 2, 3, 4, 5}, std::move(memories[r / locals][r % locals]), "all",
                           std::make_shared<const HostsWorld>(own));
      ASSERT_TRUE(c);
      at::Tensor x = at::ones({1200}), all = at::empty({7200}), part = at::empty({200});
      auto sent = [&, before = std::int64_t{0}]() mutable {
        std::int64_t now = wide[static_cast<std::size_t>(r)]->sent_bytes(), bytes = now - before;
        before = now;
        return bytes;
      };
      EXPECT_TRUE(finish((*c)->all_reduce("a", x)));
      EXPECT_EQ(sent(), 2 * 4800 / locals * (hosts - 1) / hosts);
      EXPECT_TRUE(finish((*c)->all_gather("b", all, x)));
      EXPECT_EQ(sent(), 4 * 7200 / locals * (hosts - 1) / hosts);
      EXPECT_TRUE(finish((*c)->reduce_scatter("c", part, x)));
      EXPECT_EQ(sent(), 4800 / locals * (hosts - 1) / hosts);
      EXPECT_TRUE(finish((*c)->broadcast("d", x)));
      EXPECT_EQ(sent(), 4800 / locals * (hosts - 1) / hosts);
      EXPECT_EQ((*c)->sent_bytes(), 5 * 2 * 4800 / 6 + 5 * 4800 / 6 + 5 * 4800 / 6 + 5 * 4 * 7200 / 6);
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace
}  // namespace yoke
