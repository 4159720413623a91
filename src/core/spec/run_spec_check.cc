#include "core/spec/run_spec_check.h"

#include <fmt/format.h>

#include <algorithm>

namespace yoke {
namespace {

class Checker {
 public:
  Checker(const ResolvedSpec& resolved, const std::string& file)
      : spec_(resolved.spec), origins_(resolved.origins), file_(file) {}

  Result<void> run() const {
    YOKE_TRY_VOID(train());
    YOKE_TRY_VOID(layout());
    YOKE_TRY_VOID(offload());
    if (spec_.model.shape == Model()) return {};  // its config.json is not read yet
    YOKE_TRY_VOID(shape());
    return layout_of_shape();
  }

 private:
  // The error stands at the line of this key.
  Result<void> reject(const std::string& key, const std::string& what, std::string hint) const {
    auto origin = origins_.find(key);
    const bool has_place = origin != origins_.end() && origin->second != "default";
    return fail(ErrorKind::usage, fmt::format("{}: {} {}", has_place ? origin->second : file_, key, what),
                std::move(hint));
  }

  Result<void> train() const {
    const TrainSpec& t = spec_.train;
    if (t.micro_batch > 0 && t.global_batch % t.micro_batch != 0) {
      return reject("train.global_batch",
                    fmt::format("is {}, which train.micro_batch = {} does not divide", t.global_batch, t.micro_batch),
                    "choose a global batch that is a multiple of the micro-batch, or micro_batch = \"auto\"");
    }
    if (t.schedule.warmup > t.steps) {
      return reject("train.schedule.warmup",
                    fmt::format("is {} steps, more than train.steps = {}", t.schedule.warmup, t.steps),
                    "choose a warm-up that ends before the training does");
    }
    if (t.schedule.min_lr > t.optimizer.lr) {
      return reject("train.schedule.min_lr",
                    fmt::format("is {}, above train.optimizer.lr = {}", t.schedule.min_lr, t.optimizer.lr),
                    "the rate decays from lr down to min_lr: choose a smaller one");
    }
    const double tokens =
        static_cast<double>(t.steps) * static_cast<double>(t.global_batch) * static_cast<double>(spec_.data.sequence);
    if (tokens > 0x1p62) {
      return reject("train.steps", fmt::format("is {}, which makes {} tokens in all", t.steps, tokens),
                    "steps * global_batch * sequence must stay below 2^62");
    }
    return {};
  }

  Result<void> layout() const {
    const ParallelSpec& p = spec_.parallel;
    if (p.virtual_stages > 1 && p.schedule != ScheduleKind::interleaved && p.schedule != ScheduleKind::zero_bubble) {
      return reject("parallel.virtual_stages",
                    fmt::format("is {} with parallel.schedule = \"{}\"", p.virtual_stages, name(p.schedule)),
                    "choose schedule = \"interleaved\" or \"zero-bubble\", or 1 virtual stage");
    }
    if (p.shard_group > 0 && p.zero == 0) {
      return reject("parallel.shard_group",
                    fmt::format("is {} with parallel.zero = 0, which shards nothing", p.shard_group),
                    "choose zero = 1, 2 or 3, or shard_group = 0");
    }
    if (p.automatic) return {};
    if (p.shard_group > 0 && p.data % p.shard_group != 0) {
      return reject("parallel.shard_group",
                    fmt::format("is {}, which does not divide parallel.data = {}", p.shard_group, p.data),
                    "each group of ranks holds a whole copy: choose a divisor, or 0 for all of them");
    }
    if (p.virtual_stages > 1 && p.pipeline == 1) {
      return reject("parallel.virtual_stages", fmt::format("is {} without a pipeline", p.virtual_stages),
                    "choose parallel.pipeline above 1, or 1 virtual stage");
    }
    if (spec_.train.global_batch % p.data != 0) {
      return reject("train.global_batch",
                    fmt::format("is {}, which parallel.data = {} does not divide", spec_.train.global_batch, p.data),
                    "each replica takes the same number of sequences: choose a multiple of data");
    }
    if (spec_.train.micro_batch > 0 && spec_.train.global_batch / p.data % spec_.train.micro_batch != 0) {
      return reject("train.micro_batch",
                    fmt::format("is {}, which does not divide the {} sequences of each replica",
                                spec_.train.micro_batch, spec_.train.global_batch / p.data),
                    "choose a divisor, or micro_batch = \"auto\"");
    }
    if (spec_.data.sequence % p.context != 0) {
      return reject("parallel.context",
                    fmt::format("is {}, which does not divide data.sequence = {}", p.context, spec_.data.sequence),
                    "each rank takes an equal part of the sequence: choose a divisor");
    }
    return ranks();
  }

  Result<void> offload() const {
    const OffloadSpec& o = spec_.offload;
    if (o.parameters != Offload::none && spec_.parallel.zero != 3) {
      return reject("offload.parameters",
                    fmt::format("is \"{}\" with parallel.zero = {}", name(o.parameters), spec_.parallel.zero),
                    "only sharded parameters can lie elsewhere: choose zero = 3, or parameters = \"none\"");
    }
    if (o.activations != Offload::none && spec_.train.recompute != Recompute::full) {
      return reject(
          "offload.activations",
          fmt::format("is \"{}\" with train.recompute = \"{}\"", name(o.activations), name(spec_.train.recompute)),
          "what lies elsewhere are the inputs kept by full recomputation: choose recompute = \"full\", or "
          "activations = \"none\"");
    }
    return {};
  }

  Result<void> ranks() const {
    const ParallelSpec& p = spec_.parallel;
    const double ranks = static_cast<double>(p.data) * static_cast<double>(p.tensor) * static_cast<double>(p.pipeline) *
                         static_cast<double>(p.context) * static_cast<double>(p.expert);
    const auto there = static_cast<double>(spec_.cluster.nodes * spec_.cluster.per_node);
    if (spec_.cluster.per_node == 0 || ranks == there) return {};
    return reject("parallel.layout",
                  fmt::format("has sizes for {} ranks, but cluster.nodes * cluster.per_node is {}", ranks, there),
                  "the product of data, tensor, pipeline, context and expert is the number of ranks");
  }

  Result<void> shape() const {
    const Model& m = spec_.model.shape;
    if (auto checked = check(m); !checked) {
      Error error = std::move(checked).error();  // "kv_heads is 4, which ...": the first word is the key's
      const std::size_t space = error.what.find(' ');
      return reject("model." + error.what.substr(0, space), error.what.substr(space + 1), std::move(error.hint));
    }
    if (spec_.data.sequence > m.max_sequence) {
      return reject("data.sequence",
                    fmt::format("is {}, above the model's max_sequence of {}", spec_.data.sequence, m.max_sequence),
                    "choose a shorter sequence, or a model with a larger max_sequence");
    }
    const bool text = std::any_of(spec_.data.train.begin(), spec_.data.train.end(),
                                  [](const auto& f) { return !f.ends_with(".bin"); });
    if (text && spec_.data.tokenizer == "bytes" && m.vocab < 256) {
      return reject("model.vocab", fmt::format("is {}, but data.tokenizer = \"bytes\" makes 256 tokens", m.vocab),
                    "choose vocab = 256 or more, or another tokenizer");
    }
    return {};
  }

  Result<void> layout_of_shape() const {
    const ParallelSpec& p = spec_.parallel;
    const Model& m = spec_.model.shape;
    if (p.automatic) return {};
    if (m.kv_heads % p.tensor != 0 || m.ffn % p.tensor != 0) {
      return reject("parallel.tensor",
                    fmt::format("is {}, which does not divide kv_heads = {} and ffn = {}", p.tensor, m.kv_heads, m.ffn),
                    "tensor ranks share heads and the feed-forward part equally: choose a divisor of both");
    }
    if (p.pipeline * p.virtual_stages > m.layers) {
      return reject("parallel.pipeline",
                    fmt::format("makes {} chunks (pipeline * virtual_stages), but the model has {} layers",
                                p.pipeline * p.virtual_stages, m.layers),
                    "each chunk needs a layer: choose fewer stages");
    }
    return {};
  }

  const RunSpec& spec_;
  const Origins& origins_;
  const std::string& file_;
};

}  // namespace

Result<void> check_consistency(const ResolvedSpec& resolved, const std::string& file) {
  return Checker(resolved, file).run();
}

Result<void> check_supported(const RunSpec& spec) {
  auto reject = [](const std::string& what, const char* hint) {
    return fail(ErrorKind::usage, what + ", which the engine does not have yet", hint);
  };
  const ParallelSpec& p = spec.parallel;
  const std::pair<const char*, std::int64_t> axes[] = {
      {"tensor", p.tensor}, {"pipeline", p.pipeline}, {"context", p.context}, {"expert", p.expert}};
  for (auto [axis, size] : axes) {
    if (!p.automatic && size > 1)
      return reject(fmt::format("parallel.{} is {}", axis, size), "choose 1; data is the axis that works");
  }
  if (spec.cluster.mode == ClusterMode::threads && spec.cluster.device == DeviceKind::cuda)
    return reject("cluster.mode is \"threads\" with cluster.device = \"cuda\"", "choose mode = \"processes\"");
  if (spec.cluster.nodes > 1) return reject(fmt::format("cluster.nodes is {}", spec.cluster.nodes), "choose nodes = 1");
  return {};
}

}  // namespace yoke
