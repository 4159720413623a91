#include "core/spec/key_makers.h"

namespace yoke {
namespace {

constexpr std::array precisions = {"fp32", "bf16", "fp16"};
constexpr std::array recomputes = {"none", "selective", "full"};
constexpr std::array schedules = {"gpipe", "1f1b", "interleaved", "zero-bubble"};
constexpr std::array orders = {"sequential", "shuffled"};
constexpr std::array decays = {"matrices", "all"};
constexpr std::array lr_decays = {"none", "linear", "cosine"};
constexpr std::array devices = {"auto", "cuda", "cpu"};
constexpr std::array modes = {"processes", "threads"};
constexpr std::array offloads = {"none", "host", "file"};
constexpr std::array families = {"llama", "gpt2"};

// Above any cluster, any training run; products of a few of them stay within 63 bits.
constexpr std::int64_t most_ranks = 1 << 20, most_steps = 1'000'000'000, most_batch = 1 << 20, most_sequence = 1 << 28;
constexpr double most_seconds = 1e6;

bool has_shape(const RunSpec& s) { return s.model.shape.layers > 0; }
bool has_sizes(const RunSpec& s) { return !s.parallel.automatic; }

// A size of the layout; giving one ends the automatic layout.
template <class Field>
Row axis(const char* key, Field field, const char* meaning) {
  Row row = only_if(has_sizes, integer(key, field, 1, most_ranks, meaning));
  row.set = [set = row.set](RunSpec& s, const Value& value) {
    s.parallel.automatic = false;
    return set(s, value);
  };
  return row;
}

Row layout() {
  Row row = make("parallel.layout", "one of auto | sizes", "",
                 "auto: the planner chooses; sizes: the keys below, whose product is the number of ranks (giving one "
                 "of them is enough)");
  row.choices = {"auto", "sizes"};
  row.get = [](const RunSpec& s) -> std::optional<Value> {
    return Value(std::string(s.parallel.automatic ? "auto" : "sizes"));
  };
  row.set = [](RunSpec& s, const Value& value) {
    const auto* t = std::get_if<std::string>(&value);
    if (t == nullptr || (*t != "auto" && *t != "sizes")) return false;
    s.parallel.automatic = *t == "auto";
    return true;
  };
  return row;
}

bool letter_or_digit(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }

Row run_name() {
  Row row = make("name", "string", "of letters, digits, '.', '_' and '-', starting with a letter or digit, up to 100",
                 "names the run's folder: runs/<name>/");
  row.get = [](const RunSpec& s) -> std::optional<Value> { return Value(s.name); };
  row.set = [](RunSpec& s, const Value& value) {
    const auto* t = std::get_if<std::string>(&value);
    if (t == nullptr || t->empty() || t->size() > 100) return false;
    if (!letter_or_digit(t->front())) return false;
    for (char c : *t)
      if (!letter_or_digit(c) && c != '.' && c != '_' && c != '-') return false;
    s.name = *t;
    return true;
  };
  return row;
}

Value list_of(const std::vector<std::string>& texts) { return std::vector<Scalar>(texts.begin(), texts.end()); }

bool good_files(const std::optional<std::vector<std::string>>& files) {
  if (!files || files->empty()) return false;
  for (const std::string& file : *files)
    if (file.empty() || !no_control(file)) return false;
  return true;
}

Row train_files() {
  Row row = make("data.train", "string or list of strings", "not empty",
                 "globs of text files (** for any folders), or token files (.bin)");
  row.get = [](const RunSpec& s) -> std::optional<Value> {
    if (s.data.train.empty()) return std::nullopt;
    return list_of(s.data.train);
  };
  row.set = [](RunSpec& s, const Value& value) {
    auto files = as_texts(value);
    if (!good_files(files)) return false;
    s.data.train = *files;
    return true;
  };
  return row;
}

Row validation() {
  Row row = make("data.validation", "number, string or list of strings", "from 0 to below 1, or files",
                 "a share of the train tokens, taken from their end; or files of its own");
  row.get = [](const RunSpec& s) -> std::optional<Value> {
    if (!s.data.validation.empty()) return list_of(s.data.validation);
    return Value(s.data.validation_share);
  };
  row.set = [](RunSpec& s, const Value& value) {
    if (auto share = as_number(value)) {
      if (!(*share >= 0 && *share < 1)) return false;
      s.data.validation_share = *share;
      s.data.validation.clear();
      return true;
    }
    auto files = as_texts(value);
    if (!good_files(files)) return false;
    s.data.validation = *files;
    return true;
  };
  return row;
}

Row freeze() {
  Row row = make("train.freeze", "string or list of strings", "of names with the wildcards * and ?",
                 "parameters that get no gradient, such as \"model.embed_tokens*\"");
  row.get = [](const RunSpec& s) -> std::optional<Value> { return list_of(s.train.freeze); };
  row.set = [](RunSpec& s, const Value& value) {
    auto patterns = as_texts(value);
    if (!patterns) return false;
    for (const std::string& pattern : *patterns) {
      if (pattern.empty()) return false;
      for (char c : pattern)
        if (!letter_or_digit(c) && std::string_view("._-*?").find(c) == std::string_view::npos) return false;
    }
    s.train.freeze = *patterns;
    return true;
  };
  return row;
}

Row optimizer_name() {
  Row row = make("train.optimizer.name", "one of adamw", "", "the optimiser");
  row.choices = {"adamw"};
  row.get = [](const RunSpec&) -> std::optional<Value> { return Value(std::string("adamw")); };
  row.set = [](RunSpec&, const Value& value) { return value == Value(std::string("adamw")); };
  return row;
}

Row betas() {
  Row row = make("train.optimizer.betas", "list of two numbers", "each from 0 to below 1",
                 "how slowly AdamW's two moments forget");
  row.get = [](const RunSpec& s) -> std::optional<Value> {
    return Value(std::vector<Scalar>{s.train.optimizer.beta1, s.train.optimizer.beta2});
  };
  row.set = [](RunSpec& s, const Value& value) {
    auto numbers = as_numbers(value);
    if (!numbers || numbers->size() != 2) return false;
    for (double beta : *numbers)
      if (!(beta >= 0 && beta < 1)) return false;
    s.train.optimizer.beta1 = numbers->front();
    s.train.optimizer.beta2 = numbers->back();
    return true;
  };
  return row;
}

void add_model_rows(std::vector<Row>& all) {
  all.push_back(
      text("model.preset", YOKE_FIELD(model.preset), "a model of data/models.json; shape keys beside it change it"));
  all.push_back(text("model.path", YOKE_FIELD(model.path),
                     "a folder with config.json and, if training goes on from it, *.safetensors"));
  auto shape = [&](Row row) { all.push_back(only_if(has_shape, std::move(row))); };
  shape(choice("model.family", YOKE_FIELD(model.shape.family), families, "the kind of model; llama if not given"));
  shape(integer("model.layers", YOKE_FIELD(model.shape.layers), 1, 1 << 12, "transformer layers"));
  shape(integer("model.hidden", YOKE_FIELD(model.shape.hidden), 1, 1 << 18, "width of the residual stream"));
  shape(integer("model.heads", YOKE_FIELD(model.shape.heads), 1, 1 << 14, "attention heads"));
  shape(integer("model.kv_heads", YOKE_FIELD(model.shape.kv_heads), 1, 1 << 14,
                "key-value heads; as many as heads if not given"));
  shape(integer("model.head_dim", YOKE_FIELD(model.shape.head_dim), 1, 1 << 12,
                "width of a head; hidden / heads if not given"));
  shape(integer("model.ffn", YOKE_FIELD(model.shape.ffn), 1, 1 << 20, "width of the feed-forward part"));
  shape(integer("model.vocab", YOKE_FIELD(model.shape.vocab), 1, 1 << 24, "tokens of the vocabulary; 256 for bytes"));
  shape(integer("model.max_sequence", YOKE_FIELD(model.shape.max_sequence), 1, most_sequence,
                "longest sequence, in tokens"));
  shape(boolean("model.tied", YOKE_FIELD(model.shape.tied),
                "one matrix for the input and the output embedding; false if not given"));
  all.push_back(only_if([](const RunSpec& s) { return has_shape(s) && s.model.shape.family == Family::llama; },
                        number("model.rope_theta", YOKE_FIELD(model.shape.rope_theta), 1, 1e12,
                               "base of the rotary positions; 10000 if not given; llama only")));
  shape(number("model.norm_eps", YOKE_FIELD(model.shape.norm_eps), 1e-12, 0.1,
               "epsilon of the norms; 1e-5 if not given"));
  shape(number("model.init_std", YOKE_FIELD(model.shape.init_std), 1e-6, 10,
               "standard deviation of fresh weights; 0.02 if not given"));
}

void add_data_rows(std::vector<Row>& all) {
  all.push_back(required(train_files()));
  all.push_back(validation());
  all.push_back(text("data.tokenizer", YOKE_FIELD(data.tokenizer),
                     "bytes, or the path of a sentencepiece .model or of a Hugging Face tokenizer.json"));
  all.push_back(integer("data.sequence", YOKE_FIELD(data.sequence), 1, most_sequence, "tokens of a training sequence"));
  all.push_back(choice("data.order", YOKE_FIELD(data.order), orders, "of the sequences; shuffled by train.seed"));
  all.push_back(
      text("data.cache", YOKE_FIELD(data.cache), "folder of token files; $XDG_CACHE_HOME/yoke/tokens if not given"));
}

void add_train_rows(std::vector<Row>& all) {
  auto given = [](Has has, Row row) { return required(only_if(has, std::move(row))); };
  all.push_back(given([](const RunSpec& s) { return s.train.steps > 0; },
                      integer("train.steps", YOKE_FIELD(train.steps), 1, most_steps, "optimiser steps")));
  all.push_back(given(
      [](const RunSpec& s) { return s.train.global_batch > 0; },
      integer("train.global_batch", YOKE_FIELD(train.global_batch), 1, most_batch, "sequences per optimiser step")));
  all.push_back(
      integer("train.micro_batch", YOKE_FIELD(train.micro_batch), 1, most_batch, "sequences per forward", true));
  all.push_back(choice("train.precision", YOKE_FIELD(train.precision), precisions,
                       "of parameters and activations; the optimiser always works in fp32"));
  all.push_back(
      choice("train.recompute", YOKE_FIELD(train.recompute), recomputes, "activations computed again in the backward"));
  all.push_back(integer("train.seed", YOKE_FIELD(train.seed), 0, INT64_MAX, "of fresh weights and of the shuffle"));
  all.push_back(freeze());
  all.push_back(integer("train.threads", YOKE_FIELD(train.threads), 1, 4096,
                        "CPU threads a rank; auto: cores / ranks, at least 1", true));
  all.push_back(
      integer("train.validate_every", YOKE_FIELD(train.validate_every), 0, most_steps, "steps; 0: only at the end"));
  all.push_back(integer("train.log_every", YOKE_FIELD(train.log_every), 1, most_steps, "steps between step lines"));
  all.push_back(number("train.bucket_mib", YOKE_FIELD(train.bucket_mib), 0.001, 65536,
                       "gradients are reduced in buckets of about this many MiB"));
  all.push_back(number("train.first_bucket_mib", YOKE_FIELD(train.first_bucket_mib), 0.001, 65536,
                       "the first bucket is smaller, so that it can start early"));
  all.push_back(number("train.collective_timeout", YOKE_FIELD(train.collective_timeout), 0.001, most_seconds,
                       "seconds that a collective may take"));
  all.push_back(optimizer_name());
  all.push_back(number("train.optimizer.lr", YOKE_FIELD(train.optimizer.lr), 0, 1000, "learning rate at its highest"));
  all.push_back(betas());
  all.push_back(number("train.optimizer.eps", YOKE_FIELD(train.optimizer.eps), 1e-30, 1,
                       "added to the root of the second moment"));
  all.push_back(number("train.optimizer.weight_decay", YOKE_FIELD(train.optimizer.weight_decay), 0, 1000,
                       "decoupled from the gradient"));
  all.push_back(choice("train.optimizer.decay", YOKE_FIELD(train.optimizer.decay), decays,
                       "what decays: matrices only, or norms and biases as well"));
  all.push_back(number("train.optimizer.clip", YOKE_FIELD(train.optimizer.clip), 0, 1e9,
                       "largest norm of the gradient; 0: none; the factor is min(1, clip / (norm + 1e-6))"));
  all.push_back(number("train.loss_scale.initial", YOKE_FIELD(train.loss_scale.initial), 1, 1 << 24,
                       "with fp16 the loss is multiplied by it at first; an overflow skips the step and halves it"));
  all.push_back(integer("train.loss_scale.growth_interval", YOKE_FIELD(train.loss_scale.growth_interval), 1, most_steps,
                        "steps in a row without overflow after which it doubles"));
  all.push_back(integer("train.schedule.warmup", YOKE_FIELD(train.schedule.warmup), 0, most_steps,
                        "steps; the rate at step s (from 0) is lr * (s + 1) / warmup"));
  all.push_back(
      choice("train.schedule.decay", YOKE_FIELD(train.schedule.decay), lr_decays, "of the rate after the warm-up"));
  all.push_back(number("train.schedule.min_lr", YOKE_FIELD(train.schedule.min_lr), 0, 1000,
                       "where the decay ends, at the last step"));
}

void add_place_rows(std::vector<Row>& all) {
  all.push_back(layout());
  all.push_back(axis("parallel.data", YOKE_FIELD(parallel.data), "replicas, each with its share of the batch"));
  all.push_back(axis("parallel.tensor", YOKE_FIELD(parallel.tensor), "ranks that cut each matrix"));
  all.push_back(axis("parallel.pipeline", YOKE_FIELD(parallel.pipeline), "stages of layers"));
  all.push_back(axis("parallel.context", YOKE_FIELD(parallel.context), "ranks that cut each sequence"));
  all.push_back(axis("parallel.expert", YOKE_FIELD(parallel.expert), "ranks that share the experts"));
  all.push_back(integer("parallel.zero", YOKE_FIELD(parallel.zero), 0, 3,
                        "ZeRO stage: 1 shards the optimiser, 2 the gradients, 3 the parameters, over data"));
  all.push_back(integer("parallel.shard_group", YOKE_FIELD(parallel.shard_group), 0, most_ranks,
                        "ranks of data that share one sharded copy; a divisor of data; 0: all of them"));
  all.push_back(choice("parallel.schedule", YOKE_FIELD(parallel.schedule), schedules, "of the pipeline"));
  all.push_back(integer("parallel.virtual_stages", YOKE_FIELD(parallel.virtual_stages), 1, 1 << 12,
                        "chunks a pipeline stage; above 1 with interleaved and zero-bubble only"));
  all.push_back(boolean("parallel.sequence_parallel", YOKE_FIELD(parallel.sequence_parallel),
                        "tensor ranks share the sequence where they do not cut a matrix"));
  all.push_back(choice("offload.optimizer", YOKE_FIELD(offload.optimizer), offloads,
                       "where the optimiser's state lies: with the device, in host memory, or in files"));
  all.push_back(choice("offload.parameters", YOKE_FIELD(offload.parameters), offloads,
                       "where parameters lie while they are not needed; other than none with zero = 3 only"));
  all.push_back(choice("offload.activations", YOKE_FIELD(offload.activations), offloads,
                       "where the layers' kept inputs lie; other than none with recompute = \"full\" only"));
  all.push_back(text("offload.path", YOKE_FIELD(offload.path),
                     "folder of the offloaded files, best on a fast local disk; the run folder if not given"));
  all.push_back(integer("cluster.nodes", YOKE_FIELD(cluster.nodes), 1, most_ranks, "hosts"));
  all.push_back(integer("cluster.per_node", YOKE_FIELD(cluster.per_node), 1, 4096,
                        "ranks a node; auto: its GPUs, or on a CPU two, or one a core if that is less", true));
  all.push_back(choice("cluster.device", YOKE_FIELD(cluster.device), devices, "auto: cuda where there is a GPU"));
  all.push_back(
      choice("cluster.mode", YOKE_FIELD(cluster.mode), modes, "ranks as processes, or as threads of one process"));
  all.push_back(integer("checkpoint.every", YOKE_FIELD(checkpoint.every), 0, most_steps, "steps; 0: only at the end"));
  all.push_back(integer("checkpoint.keep", YOKE_FIELD(checkpoint.keep), 1, most_steps, "newest checkpoints that stay"));
  all.push_back(
      text("checkpoint.resume", YOKE_FIELD(checkpoint.resume),
           "auto: the newest complete checkpoint of the run folder; a checkpoint's folder: that one, until the "
           "run has its own; none"));
  all.push_back(integer("restart.max", YOKE_FIELD(restart.max), 0, 1'000'000, "restarts after failures"));
  all.push_back(number("restart.grace", YOKE_FIELD(restart.grace), 0, most_seconds,
                       "seconds between a forwarded SIGINT or SIGTERM and SIGKILL, in which a checkpoint is written"));
}

std::vector<Row> make_rows() {
  std::vector<Row> all;
  all.push_back(run_name());
  add_model_rows(all);
  add_data_rows(all);
  add_train_rows(all);
  add_place_rows(all);
  for (Row& row : all) {
    auto value = row.get(RunSpec());
    if (value && !row.info.required) row.info.default_value = to_toml(*value);
  }
  return all;
}

}  // namespace

std::span<const Row> rows() {
  static const std::vector<Row> all = make_rows();
  return all;
}

const char* name(Precision p) { return precisions[static_cast<std::size_t>(p)]; }
const char* name(Recompute r) { return recomputes[static_cast<std::size_t>(r)]; }
const char* name(ScheduleKind s) { return schedules[static_cast<std::size_t>(s)]; }
const char* name(DataOrder o) { return orders[static_cast<std::size_t>(o)]; }
const char* name(Decay d) { return decays[static_cast<std::size_t>(d)]; }
const char* name(LrDecay d) { return lr_decays[static_cast<std::size_t>(d)]; }
const char* name(DeviceKind d) { return devices[static_cast<std::size_t>(d)]; }
const char* name(Offload o) { return offloads[static_cast<std::size_t>(o)]; }
const char* name(ClusterMode m) { return modes[static_cast<std::size_t>(m)]; }

}  // namespace yoke
