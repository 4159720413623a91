// For tests: collectives whose results are known.
#pragma once

#include <ATen/ATen.h>

#include <functional>
#include <vector>

#include "train/comm/communicator.h"

namespace yoke {

inline Result<void> finish(Result<WorkPtr> work) {
  if (!work) return tl::unexpected(work.error());
  return (*work)->wait();
}

// Every kind of collective with integer values, for which the results are exact: what each rank must have, whatever the
// path that the data take. `make` gives the tensors.
inline bool collectives_are_right(Communicator& c, std::int64_t part, at::ScalarType type,
                                  const std::function<at::Tensor(std::int64_t)>& make) {
  auto n = static_cast<std::int64_t>(c.size());
  std::int64_t r = c.rank();
  // Element i of rank r's tensor; small, so that also bf16 holds the sums.
  auto values = [&](std::int64_t rank, std::int64_t numel) {
    return ((at::arange(numel, at::kLong) * 7 + rank * 3) % 11).to(type);
  };
  auto filled = [&](std::int64_t numel) {
    at::Tensor t = make(numel);
    t.copy_(values(r, numel));
    return t;
  };
  auto sum = [&](std::int64_t numel) {
    at::Tensor total = at::zeros({numel}, at::kDouble);
    for (std::int64_t k = 0; k < n; ++k) total += values(k, numel);
    return total.to(type);
  };
  std::int64_t odd = part * n + 1;  // does not divide by the ranks
  at::Tensor all = filled(odd), high = filled(odd), root = filled(odd), whole = filled(part * n), mine = filled(part),
             scattered = make(part), gathered = make(part * n), in_place = make(part * n), exchanged = make(part * n);
  at::Tensor slice = in_place.narrow(0, r * part, part);
  slice.copy_(values(r, part));
  std::vector<Result<WorkPtr>> works;
  works.push_back(c.all_reduce("sum", all));
  works.push_back(c.all_reduce("max", high, ReduceOp::max));
  works.push_back(c.broadcast("root", root, static_cast<int>(n - 1)));
  works.push_back(c.reduce_scatter("scatter", scattered, whole));
  works.push_back(c.all_gather("gather", gathered, mine));
  works.push_back(c.all_gather("gather in place", in_place, slice));
  works.push_back(c.all_to_all("exchange", exchanged, whole));
  bool right = true;
  for (auto work = works.rbegin(); work != works.rend(); ++work) right = right && finish(std::move(*work));
  right = right && c.barrier("end").has_value();
  at::Tensor expected_max = values(0, odd);
  for (std::int64_t k = 1; k < n; ++k) expected_max = at::maximum(expected_max, values(k, odd));
  std::vector<at::Tensor> every, part_of_every;
  for (std::int64_t k = 0; k < n; ++k) {
    every.push_back(values(k, part));
    part_of_every.push_back(values(k, part * n).narrow(0, r * part, part));
  }
  return right && at::equal(all, sum(odd)) && at::equal(high, expected_max) && at::equal(root, values(n - 1, odd)) &&
         at::equal(scattered, sum(part * n).narrow(0, r * part, part)) && at::equal(gathered, at::cat(every)) &&
         at::equal(in_place, at::cat(every)) && at::equal(exchanged, at::cat(part_of_every));
}

// Sizes of a part that take each path: with the announcement, one piece, several pieces with a rest.
inline constexpr std::int64_t part_sizes[] = {1, 5, 3000, 100'001};

}  // namespace yoke
