// Collectives between processes of this host: Yoke's shared memory beside Gloo, in one interleaved run.
//
//   bench_collectives [RANKS...]        2 and 4 without arguments
//
// Columns as in nccl-tests: busbw is 2(n-1)/n times bytes over time for all_reduce, (n-1)/n for the others. Each time
// is the median over rounds of the slowest rank's time for one operation; every round runs all rows once. "in place"
// means tensors of shared_empty(). The last column holds busbw against memcpy of the same bytes, by all ranks at once.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "core/base/text.h"
#include "os/clock.h"
#include "os/port.h"
#include "train/comm/c10d.h"
#include "train/comm/test_processes.h"

namespace {

using namespace yoke;

constexpr int rounds = 7;

enum class Kind { all_reduce, reduce_scatter, all_gather, all_to_all, copy };
const char* name(Kind kind) {
  switch (kind) {
    case Kind::all_reduce:
      return "all_reduce";
    case Kind::reduce_scatter:
      return "reduce_scatter";
    case Kind::all_gather:
      return "all_gather";
    case Kind::all_to_all:
      return "all_to_all";
    case Kind::copy:
      return "memcpy";
  }
  return "";
}

double factor(Kind kind, int n) {
  if (kind == Kind::copy) return 1;
  return (kind == Kind::all_reduce ? 2.0 : 1.0) * (n - 1) / n;
}

// The whole tensor of the operation (its larger side), and a part of it.
struct Tensors {
  at::Tensor whole, part, other;
};

void once(Communicator& c, Kind kind, const Tensors& t) {
  Result<WorkPtr> work;
  switch (kind) {
    case Kind::all_reduce:
      work = c.all_reduce("x", t.whole);
      break;
    case Kind::reduce_scatter:
      work = c.reduce_scatter("x", t.part, t.whole);
      break;
    case Kind::all_gather:
      work = c.all_gather("x", t.whole, t.part);
      break;
    case Kind::all_to_all:
      work = c.all_to_all("x", t.other, t.whole);
      break;
    case Kind::copy:
      std::memcpy(t.other.data_ptr(), t.whole.data_ptr(), t.whole.nbytes());
      return;
  }
  if (!work || !(*work)->wait()) _exit(3);
}

// Seconds of one operation on the slowest rank.
double time_of(Communicator& group, Communicator& clock_group, Kind kind, const Tensors& t) {
  auto repeats =
      std::max<std::int64_t>(2, std::min<std::int64_t>(2000, (32 << 20) / static_cast<std::int64_t>(t.whole.nbytes())));
  once(group, kind, t);
  if (!clock_group.barrier("start")) _exit(3);
  std::int64_t began = monotonic_ns();
  for (std::int64_t i = 0; i < repeats; ++i) once(group, kind, t);
  at::Tensor seconds =
      at::full({1}, static_cast<double>(monotonic_ns() - began) * 1e-9 / static_cast<double>(repeats), at::kDouble);
  auto work = clock_group.all_reduce("slowest", seconds, ReduceOp::max);
  if (!work || !(*work)->wait()) _exit(3);
  return seconds.item<double>();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

int measure(Communicator& shared, int port) {
  at::set_num_threads(1);
  int n = shared.size();
  World world{.rank = shared.rank(), .size = n, .local_rank = shared.rank(), .local_size = n, .master_port = port};
  auto gloo = connect(world, "data", Transport::gloo, Seconds(120));
  if (!gloo) return 2;
  bool print = shared.rank() == 0;
  if (print)
    fmt::print("\n{} ranks\n{:>14} {:>9} {:>6} {:>11} {:>11} {:>11} {:>9} {:>9} {:>9} {:>7} {:>8} {:>8}\n", n,
               "operation", "bytes", "type", "gloo us", "copied us", "in place us", "gloo GB/s", "copied", "in place",
               "copied x", "in pl. x", "memcpy");
  for (Kind kind : {Kind::all_reduce, Kind::reduce_scatter, Kind::all_gather, Kind::all_to_all})
    for (at::ScalarType type : {at::kFloat, at::kBFloat16})
      for (std::int64_t bytes : {std::int64_t{256}, std::int64_t{16} << 10, std::int64_t{1} << 20,
                                 std::int64_t{16} << 20, std::int64_t{64} << 20, std::int64_t{256} << 20}) {
        if (type == at::kBFloat16 && kind != Kind::all_reduce && kind != Kind::reduce_scatter) continue;
        std::int64_t numel = bytes / static_cast<std::int64_t>(c10::elementSize(type));
        auto options = at::dtype(type);
        Tensors plain{at::zeros({numel}, options), at::zeros({numel / n}, options), at::zeros({numel}, options)};
        Tensors in_place{shared.shared_empty(numel, options).zero_(), shared.shared_empty(numel / n, options).zero_(),
                         shared.shared_empty(numel, options).zero_()};
        std::vector<double> times[4];
        for (int round = 0; round < rounds; ++round) {
          times[0].push_back(time_of(**gloo, shared, kind, plain));
          times[1].push_back(time_of(shared, shared, kind, plain));
          times[2].push_back(time_of(shared, shared, kind, in_place));
          times[3].push_back(time_of(shared, shared, Kind::copy, plain));
        }
        double t[4], rate[4];
        for (int i = 0; i < 4; ++i) {
          t[i] = median(times[i]);
          rate[i] = static_cast<double>(bytes) * factor(i == 3 ? Kind::copy : kind, n) / t[i] * 1e-9;
        }
        if (print)
          fmt::print(
              "{:>14} {:>9} {:>6} {:>11.1f} {:>11.1f} {:>11.1f} {:>9.2f} {:>9.2f} {:>9.2f} {:>7.1f} {:>8.1f} "
              "{:>8.2f}\n",
              name(kind), bytes, type == at::kFloat ? "fp32" : "bf16", t[0] * 1e6, t[1] * 1e6, t[2] * 1e6, rate[0],
              rate[1], rate[2], t[0] / t[1], t[0] / t[2], rate[3]);
        std::fflush(stdout);
      }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  std::vector<int> sizes;
  for (int i = 1; i < argc; ++i) sizes.push_back(static_cast<int>(parse_integer(argv[i]).value_or(0)));
  if (sizes.empty()) sizes = {2, 4};
  for (int n : sizes) {
    if (n < 2) return 2;
    auto port = free_tcp_port();
    if (!port) return 3;
    for (int code : run_processes(n, Seconds(120), [&](Communicator& c) { return measure(c, *port); }))
      if (code != 0) return 1;
  }
  return 0;
}
