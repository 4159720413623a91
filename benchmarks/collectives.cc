// Collectives between processes of this host: Yoke's shared memory beside Gloo, in one interleaved run.
//
//   bench_collectives [RANKS...]        2 and 4 without arguments
//
// Columns as in nccl-tests: busbw is 2(n-1)/n times bytes over time for all_reduce, (n-1)/n for the others. Each time
// is the median over rounds of the slowest rank's time for one operation; every round runs all rows once. "in place"
// means tensors of shared_empty(). "moved" is what the in-place operation reads and writes in memory in a second, by
// all ranks together, and "memcpy" what copies of the same bytes by all ranks at once move: the machine's limit, beyond
// the caches. A column of slow operations gets fewer rounds: none begins after two seconds, but there are at least two.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "core/base/text.h"
#include "os/clock.h"
#include "os/devices.h"
#include "os/port.h"
#include "train/comm/c10d.h"
#include "train/comm/test_processes.h"

namespace {

using namespace yoke;

constexpr int most_rounds = 7, least_rounds = 2;
constexpr double round_seconds = 0.05, column_seconds = 2;

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

double factor(Kind kind, int n) { return (kind == Kind::all_reduce ? 2.0 : 1.0) * (n - 1) / n; }

// Times the bytes that each rank reads and writes in place: a part of every rank's tensor, and what it makes of them.
double traffic(Kind kind, int n) { return kind == Kind::reduce_scatter ? 1 + 1.0 / n : 2; }

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

// The largest of all ranks' values.
double largest(Communicator& c, double value) {
  at::Tensor all = at::full({1}, value, at::kDouble);
  auto work = c.all_reduce("largest", all, ReduceOp::max);
  if (!work || !(*work)->wait()) _exit(3);
  return all.item<double>();
}

double seconds_since(std::int64_t began) { return static_cast<double>(monotonic_ns() - began) * 1e-9; }

struct Column {
  std::vector<double> times;
  double spent = 0;
};

// One round: seconds of one operation on the slowest rank.
void measure_round(Communicator& group, Communicator& clock_group, Kind kind, const Tensors& t, Column& column) {
  if (static_cast<int>(column.times.size()) >= least_rounds && column.spent > column_seconds) return;
  std::int64_t began = monotonic_ns();
  once(group, kind, t);
  double first = largest(clock_group, seconds_since(began));
  auto repeats = std::clamp<std::int64_t>(static_cast<std::int64_t>(round_seconds / first), 1, 2000);
  if (!clock_group.barrier("start")) _exit(3);
  began = monotonic_ns();
  for (std::int64_t i = 0; i < repeats; ++i) once(group, kind, t);
  double seconds = largest(clock_group, seconds_since(began));
  column.times.push_back(seconds / static_cast<double>(repeats));
  column.spent += first + seconds;
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
    fmt::print(
        "\n{} ranks on {} cores\n{:>14} {:>9} {:>6} {:>11} {:>11} {:>11} {:>9} {:>9} {:>9} {:>7} {:>8} {:>8} {:>8}\n",
        n, usable_cores(), "operation", "bytes", "type", "gloo us", "copied us", "in place us", "gloo GB/s", "copied",
        "in place", "copied x", "in pl. x", "moved", "memcpy");
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
        Column columns[4];
        for (int round = 0; round < most_rounds; ++round) {
          measure_round(**gloo, shared, kind, plain, columns[0]);
          measure_round(shared, shared, kind, plain, columns[1]);
          measure_round(shared, shared, kind, in_place, columns[2]);
          measure_round(shared, shared, Kind::copy, plain, columns[3]);
        }
        double t[4], rate[3], gigabytes = static_cast<double>(bytes) * 1e-9;
        for (int i = 0; i < 4; ++i) t[i] = median(columns[i].times);
        for (int i = 0; i < 3; ++i) rate[i] = gigabytes * factor(kind, n) / t[i];
        if (print)
          fmt::print(
              "{:>14} {:>9} {:>6} {:>11.1f} {:>11.1f} {:>11.1f} {:>9.2f} {:>9.2f} {:>9.2f} {:>7.1f} {:>8.1f} {:>8.1f} "
              "{:>8.1f}\n",
              name(kind), bytes, type == at::kFloat ? "fp32" : "bf16", t[0] * 1e6, t[1] * 1e6, t[2] * 1e6, rate[0],
              rate[1], rate[2], t[0] / t[1], t[0] / t[2], n * traffic(kind, n) * gigabytes / t[2],
              n * traffic(Kind::copy, n) * gigabytes / t[3]);
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
