// A run: everything that `yoke run` needs to know, from a TOML file, the environment and the command line.
//
// One table (key_table) lists every key with its type, default, range and meaning. The parser, --set, "did you mean",
// run.json and the reference page in docs/ are made from it, so they cannot disagree.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/result.h"
#include "core/spec/model.h"

namespace yoke {

enum class Precision { fp32, bf16, fp16 };
enum class Recompute { none, selective, full };
enum class ScheduleKind { gpipe, one_f_one_b, interleaved, zero_bubble };
enum class DataOrder { sequential, shuffled };
enum class Decay { matrices, all };
enum class LrDecay { none, linear, cosine };
enum class DeviceKind { automatic, cuda, cpu };
enum class ClusterMode { processes, threads };
enum class Offload { none, host, file };

struct ModelSpec {
  std::string preset;  // a name of data/models.json; or
  std::string path;    // a folder with config.json; or the shape itself in [model]
  Model shape;         // resolved: whichever way it was given
};

struct DataSpec {
  std::vector<std::string> train;       // globs of text files, or token files (.bin)
  double validation_share = 0.01;       // of the train tokens, from their end; ignored when `validation` is not empty
  std::vector<std::string> validation;  // its own list
  std::string tokenizer = "bytes";  // bytes | path of a sentencepiece .model | path of a Hugging Face tokenizer.json
  std::int64_t sequence = 256;      // tokens
  DataOrder order = DataOrder::shuffled;
  std::string cache;  // folder of token files; empty: $XDG_CACHE_HOME/yoke/tokens
};

struct OptimizerSpec {
  double lr = 3e-4;
  double beta1 = 0.9, beta2 = 0.95;
  double eps = 1e-8;
  double weight_decay = 0.1;
  Decay decay = Decay::matrices;
  double clip = 1.0;  // 0: none; the factor is min(1, clip / (norm + 1e-6))
};

struct LrScheduleSpec {
  std::int64_t warmup = 0;  // steps; the rate at step s (from 0) is lr * (s + 1) / warmup
  LrDecay decay = LrDecay::none;
  double min_lr = 0;  // where the decay ends, at the last step
};

// Dynamic loss scaling, with fp16 only.
struct LossScaleSpec {
  double initial = 65536;
  std::int64_t growth_interval = 2000;  // steps in a row without overflow after which the scale doubles
};

struct TrainSpec {
  std::int64_t steps = 0;
  std::int64_t global_batch = 0;  // sequences per optimiser step
  std::int64_t micro_batch = 0;   // sequences per forward; 0: auto
  Precision precision = Precision::fp32;
  Recompute recompute = Recompute::none;
  std::uint64_t seed = 1;
  std::vector<std::string> freeze;  // patterns (* and ?) of the names of parameters that get no gradient
  std::int64_t threads = 0;         // CPU threads a rank; 0: auto (cores / ranks, at least 1)
  std::int64_t validate_every = 0;  // steps; 0: only at the end
  std::int64_t log_every = 1;       // steps between step lines
  double bucket_mib = 25;           // gradients are reduced in buckets of about this size,
  double first_bucket_mib = 1;      // the first one smaller, so that it can start early
  double collective_timeout = 600;  // seconds
  OptimizerSpec optimizer;
  LossScaleSpec loss_scale;
  LrScheduleSpec schedule;
};

struct ParallelSpec {
  bool automatic = true;  // layout = "auto"
  std::int64_t data = 1, tensor = 1, pipeline = 1, context = 1, expert = 1;
  int zero = 0;
  std::int64_t shard_group = 0;  // ranks of the data axis that share one sharded copy; 0: all of them
  ScheduleKind schedule = ScheduleKind::one_f_one_b;
  std::int64_t virtual_stages = 1;
  bool sequence_parallel = true;
};

// What lies outside the device's memory while it is not needed.
struct OffloadSpec {
  Offload optimizer = Offload::none;
  Offload parameters = Offload::none;   // with ZeRO stage 3 only
  Offload activations = Offload::none;  // with full recomputation only: the inputs that its layers keep
  std::string path;                     // folder of the files; empty: the run folder
};

struct ClusterSpec {
  std::int64_t nodes = 1;
  std::int64_t per_node = 0;  // ranks a node; 0: auto (GPUs, or on a CPU two ranks or one a core, whichever is less)
  DeviceKind device = DeviceKind::automatic;
  ClusterMode mode = ClusterMode::processes;
};

struct CheckpointSpec {
  std::int64_t every = 0;  // steps; 0: only at the end
  std::int64_t keep = 3;
  std::string resume = "auto";  // auto: the newest complete checkpoint of this run folder | none | a checkpoint folder
};

struct RestartSpec {
  std::int64_t max = 3;
  double grace = 30;  // seconds between a forwarded SIGINT or SIGTERM and SIGKILL, in which a checkpoint is written
};

struct RunSpec {
  std::string name = "run";
  ModelSpec model;
  DataSpec data;
  TrainSpec train;
  ParallelSpec parallel;
  OffloadSpec offload;
  ClusterSpec cluster;
  CheckpointSpec checkpoint;
  RestartSpec restart;
};

// Where a value came from: "default", "recipes/tiny.toml:12", "--set", "YOKE_TRAIN_STEPS", "preset llama-10m".
using Origins = std::map<std::string, std::string>;  // by dotted key

struct ResolvedSpec {
  RunSpec spec;
  Origins origins;
};

struct SpecSources {
  std::string text;                                              // TOML
  std::string file;                                              // its name in messages
  std::vector<std::string> sets;                                 // "train.steps=50", strongest
  std::vector<std::pair<std::string, std::string>> environment;  // the whole environment, weaker than --set; see below
};

// One row of the table of keys.
struct KeyInfo {
  std::string key;            // dotted: "train.optimizer.lr"
  std::string type;           // "integer", "number", "string", "boolean", "list of strings", "one of a | b"
  std::string range;          // "from 1 to 1000"; empty: any
  std::string default_value;  // as TOML; empty: none, the key is left out or required
  bool required = false;
  std::string meaning;
};
std::span<const KeyInfo> key_table();

// Parses and resolves. The model's shape is complete afterwards except with model.path, whose config.json the caller
// reads (libraries here do no I/O) and passes on with set_model(). Errors are of kind usage and name file, line and
// key.
//
// A value of a set or of the environment is read as TOML, and what is not TOML as a plain string: train.precision=bf16
// works like train.precision="bf16". The variable of a key is environment_name(); other variables are left alone. A
// choice made at a stronger source replaces the whole choice of the weaker ones: model.preset or model.path everything
// in [model], parallel.layout = "auto" the sizes.
Result<ResolvedSpec> parse_run_spec(const SpecSources& sources);

// "train.optimizer.lr" -> "YOKE_TRAIN_OPTIMIZER_LR".
std::string environment_name(std::string_view key);

// Checks what needs the model's shape: sequence within max_sequence, vocabulary, ...
Result<void> set_model(ResolvedSpec& spec, const Model& shape, const std::string& origin);

// What a good spec may ask for and the engine of this version cannot do: kind usage, names the key. The parser accepts
// such specs, because they can be planned; who starts training calls this.
Result<void> check_supported(const RunSpec& spec);

// run.json: {"schema": 1, "spec": {key: value nested}, "origins": {dotted key: origin}}, and back.
std::string to_json(const ResolvedSpec& spec);
Result<ResolvedSpec> run_spec_from_json(std::string_view text, const std::string& file);

// docs/reference/run-spec.md
std::string run_spec_reference();

const char* name(Precision precision);
const char* name(Recompute recompute);
const char* name(ScheduleKind schedule);
const char* name(DataOrder order);
const char* name(Decay decay);
const char* name(LrDecay decay);
const char* name(DeviceKind device);
const char* name(ClusterMode mode);
const char* name(Offload offload);

}  // namespace yoke
