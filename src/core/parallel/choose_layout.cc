#include "core/parallel/choose_layout.h"

#include <fmt/format.h>

#include <algorithm>

namespace yoke {
namespace {

std::int64_t automatic_micro_batch(std::int64_t share) {
  std::int64_t size = std::min(share, largest_automatic_micro_batch);
  while (share % size != 0) --size;
  return size;
}

}  // namespace

Result<Layout> choose_layout(const RunSpec& spec, std::int64_t ranks) {
  YOKE_CHECK(ranks >= 1, "{} ranks", ranks);
  const ParallelSpec& p = spec.parallel;
  Layout layout;
  if (p.automatic) {
    layout.data = ranks;
  } else {
    layout.data = p.data, layout.tensor = p.tensor, layout.pipeline = p.pipeline, layout.context = p.context,
    layout.expert = p.expert;
    if (layout.ranks() != ranks) {
      return fail(ErrorKind::usage,
                  fmt::format("[parallel] has sizes for {} ranks, but there are {}", layout.ranks(), ranks),
                  "the product of data, tensor, pipeline, context and expert is the number of ranks; or choose layout "
                  "= \"auto\"");
    }
  }
  const std::int64_t batch = spec.train.global_batch, share = batch / layout.data;
  if (share * layout.data != batch) {
    return fail(ErrorKind::usage,
                fmt::format("train.global_batch is {}, which {} replicas cannot share equally", batch, layout.data),
                fmt::format("choose {}, or another number of ranks", (share + 1) * layout.data));
  }
  layout.micro_batch = spec.train.micro_batch > 0 ? spec.train.micro_batch : automatic_micro_batch(share);
  if (share % layout.micro_batch != 0) {
    return fail(ErrorKind::usage,
                fmt::format("train.micro_batch is {}, which does not divide the {} sequences of each replica",
                            layout.micro_batch, share),
                fmt::format("choose {}, or micro_batch = \"auto\"", automatic_micro_batch(share)));
  }
  layout.zero = p.zero;
  layout.shard_group = p.zero == 0 ? 1 : p.shard_group == 0 ? layout.data : p.shard_group;
  if (layout.data % layout.shard_group != 0)
    return fail(
        ErrorKind::usage,
        fmt::format("parallel.shard_group is {}, which does not divide {} data ranks", layout.shard_group, layout.data),
        "choose a divisor of the number of data ranks, or 0 for all of them");
  layout.schedule = p.schedule;
  layout.recompute = spec.train.recompute;
  layout.precision = spec.train.precision;
  return layout;
}

}  // namespace yoke
