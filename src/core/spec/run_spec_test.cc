#include "core/spec/run_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <rapidcheck.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "core/spec/presets.h"

namespace yoke {
namespace {

using testing::HasSubstr;
using Environment = std::vector<std::pair<std::string, std::string>>;

constexpr const char* least = R"(model.preset = "llama-1m"
data.train = "a.txt"
train.steps = 10
train.global_batch = 8
)";

Result<ResolvedSpec> parse(const std::string& text, std::vector<std::string> sets = {}, Environment environment = {}) {
  return parse_run_spec({text, "spec.toml", std::move(sets), std::move(environment)});
}

ResolvedSpec good(const std::string& text, std::vector<std::string> sets = {}, Environment environment = {}) {
  auto parsed = parse(text, std::move(sets), std::move(environment));
  EXPECT_TRUE(parsed) << parsed.error().what;
  return parsed.value_or(ResolvedSpec());
}

std::string read_file(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::stringstream text;
  text << in.rdbuf();
  return text.str();
}

TEST(RunSpec, TakesTheDefaultsOfTheStructs) {
  const auto [spec, origins] = good(least);
  const RunSpec usual;
  EXPECT_EQ(spec.name, usual.name);
  EXPECT_EQ(spec.data.validation_share, 0.01);
  EXPECT_EQ(spec.train.optimizer.lr, usual.train.optimizer.lr);
  EXPECT_EQ(spec.train.micro_batch, 0);
  EXPECT_TRUE(spec.parallel.automatic);
  EXPECT_EQ(spec.checkpoint.resume, "auto");
  EXPECT_EQ(origins.at("train.optimizer.lr"), "default");
  EXPECT_EQ(origins.at("train.steps"), "spec.toml:3");
  EXPECT_EQ(origins.at("model.hidden"), "preset llama-1m");
  EXPECT_FALSE(origins.contains("parallel.data"));
}

TEST(RunSpec, ReadsEveryKey) {
  const auto spec = good(R"(
name = "all-keys"
[model]
family = "gpt2"
layers = 4
hidden = 64
heads = 4
kv_heads = 4
head_dim = 16
ffn = 128
vocab = 300
max_sequence = 128
tied = true
norm_eps = 1e-6
init_std = 0.01
[data]
train = ["a/*.txt", "b.txt"]
validation = ["c.txt"]
tokenizer = "t.model"
sequence = 64
order = "sequential"
cache = "/cache"
[train]
steps = 100
global_batch = 16
micro_batch = 2
precision = "bf16"
recompute = "full"
seed = 7
freeze = ["model.embed_tokens*", "*.layers.?.mlp.*"]
threads = 3
validate_every = 20
log_every = 5
bucket_mib = 10
first_bucket_mib = 0.5
collective_timeout = 30
[train.optimizer]
name = "adamw"
lr = 1e-3
betas = [0.8, 0.9]
eps = 1e-7
weight_decay = 0.01
decay = "all"
clip = 0
[train.loss_scale]
initial = 1000
growth_interval = 50
[train.schedule]
warmup = 10
decay = "cosine"
min_lr = 1e-4
[parallel]
layout = "sizes"
data = 2
tensor = 2
pipeline = 2
context = 2
expert = 1
zero = 3
shard_group = 1
schedule = "interleaved"
virtual_stages = 2
sequence_parallel = false
[offload]
optimizer = "file"
parameters = "host"
activations = "file"
path = "/fast"
[cluster]
nodes = 2
per_node = 8
device = "cpu"
mode = "threads"
[checkpoint]
every = 50
keep = 2
resume = "none"
[restart]
max = 1
grace = 5
)")
                        .spec;
  EXPECT_EQ(spec.name, "all-keys");
  EXPECT_EQ(spec.model.shape, (Model{Family::gpt2, 4, 64, 4, 4, 16, 128, 300, 128, true, 10000, 1e-6, 0.01}));
  EXPECT_THAT(spec.data.train, testing::ElementsAre("a/*.txt", "b.txt"));
  EXPECT_THAT(spec.data.validation, testing::ElementsAre("c.txt"));
  EXPECT_EQ(spec.data.tokenizer, "t.model");
  EXPECT_EQ(spec.data.sequence, 64);
  EXPECT_EQ(spec.data.order, DataOrder::sequential);
  EXPECT_EQ(spec.data.cache, "/cache");
  const TrainSpec& t = spec.train;
  EXPECT_THAT((std::vector{t.steps, t.global_batch, t.micro_batch, t.threads, t.validate_every, t.log_every}),
              testing::ElementsAre(100, 16, 2, 3, 20, 5));
  EXPECT_EQ(t.precision, Precision::bf16);
  EXPECT_EQ(t.recompute, Recompute::full);
  EXPECT_EQ(t.seed, 7u);
  EXPECT_THAT(t.freeze, testing::ElementsAre("model.embed_tokens*", "*.layers.?.mlp.*"));
  EXPECT_EQ(t.loss_scale.initial, 1000);
  EXPECT_EQ(t.loss_scale.growth_interval, 50);
  EXPECT_THAT((std::vector{t.bucket_mib, t.first_bucket_mib, t.collective_timeout}), testing::ElementsAre(10, 0.5, 30));
  const OptimizerSpec& o = t.optimizer;
  EXPECT_THAT((std::vector{o.lr, o.beta1, o.beta2, o.eps, o.weight_decay, o.clip}),
              testing::ElementsAre(1e-3, 0.8, 0.9, 1e-7, 0.01, 0));
  EXPECT_EQ(o.decay, Decay::all);
  EXPECT_EQ(t.schedule.warmup, 10);
  EXPECT_EQ(t.schedule.decay, LrDecay::cosine);
  EXPECT_EQ(t.schedule.min_lr, 1e-4);
  const ParallelSpec& p = spec.parallel;
  EXPECT_FALSE(p.automatic);
  EXPECT_THAT((std::vector{p.data, p.tensor, p.pipeline, p.context, p.expert, p.virtual_stages}),
              testing::ElementsAre(2, 2, 2, 2, 1, 2));
  EXPECT_EQ(p.zero, 3);
  EXPECT_EQ(p.shard_group, 1);
  EXPECT_EQ(p.schedule, ScheduleKind::interleaved);
  EXPECT_FALSE(p.sequence_parallel);
  const OffloadSpec& off = spec.offload;
  EXPECT_THAT((std::vector{off.optimizer, off.parameters, off.activations}),
              testing::ElementsAre(Offload::file, Offload::host, Offload::file));
  EXPECT_EQ(off.path, "/fast");
  EXPECT_THAT((std::vector{spec.cluster.nodes, spec.cluster.per_node}), testing::ElementsAre(2, 8));
  EXPECT_EQ(spec.cluster.device, DeviceKind::cpu);
  EXPECT_EQ(spec.cluster.mode, ClusterMode::threads);
  EXPECT_THAT((std::vector{spec.checkpoint.every, spec.checkpoint.keep, spec.restart.max}),
              testing::ElementsAre(50, 2, 1));
  EXPECT_EQ(spec.checkpoint.resume, "none");
  EXPECT_EQ(spec.restart.grace, 5);
}

TEST(RunSpec, TheStrongestSourceWins) {
  const Environment environment = {
      {"YOKE_TRAIN_STEPS", "20"}, {"YOKE_TRAIN_SEED", "5"}, {"YOKE_RUN_DIR", "/x"}, {"PATH", "/bin"}};
  const auto [spec, origins] = good(least, {"train.steps=30", "train.steps=40"}, environment);
  EXPECT_EQ(spec.train.steps, 40);
  EXPECT_EQ(origins.at("train.steps"), "--set");
  EXPECT_EQ(spec.train.seed, 5u);
  EXPECT_EQ(origins.at("train.seed"), "YOKE_TRAIN_SEED");
  EXPECT_EQ(spec.train.global_batch, 8);
}

TEST(RunSpec, SetsAreTomlOrPlainText) {
  const auto spec =
      good(least, {"train.precision=bf16", "data.train=[\"x.txt\", \"y.txt\"]", "name = 007", "train.micro_batch=auto",
                   "train.optimizer.betas=[0.5, 0]", "data.validation=v/*.txt", "checkpoint.resume=\"none\""})
          .spec;
  EXPECT_EQ(spec.train.precision, Precision::bf16);
  EXPECT_THAT(spec.data.train, testing::ElementsAre("x.txt", "y.txt"));
  EXPECT_EQ(spec.name, "007");
  EXPECT_EQ(spec.train.optimizer.beta1, 0.5);
  EXPECT_THAT(spec.data.validation, testing::ElementsAre("v/*.txt"));
  EXPECT_EQ(spec.checkpoint.resume, "none");
  EXPECT_FALSE(parse(least, {"train.steps=5\ntrain.seed=2"})) << "a second line must not smuggle in a second key";
}

TEST(RunSpec, OtherEncodingsAreRefused) {
  for (const char* bytes : {"\xff", "a\xc3", "\xc0\x80", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\x80"}) {
    auto parsed = parse(least, {std::string("data.train=") + bytes});
    ASSERT_FALSE(parsed);
    EXPECT_EQ(parsed.error().what, "--set: the value of data.train is not UTF-8");
  }
  EXPECT_THAT(good(least, {"data.train=ä€𝄞.txt"}).spec.data.train, testing::ElementsAre("ä€𝄞.txt"));
}

// Depth is what recursive parsers and destructors fail on.
TEST(RunSpec, DeepTextsAreErrors) {
  auto repeat = [](const std::string& piece, int times) {
    std::string out;
    for (int i = 0; i < times; ++i) out += piece;
    return out;
  };
  const std::string deep[] = {"a" + repeat(".a", 200000) + " = 1", "x = " + repeat("[", 200000),
                              "x = " + repeat("{a = ", 200000), "[" + repeat("a.", 200000) + "a]",
                              "x = {y = \"\"\" \" \"\"\", a" + repeat(".a", 200000) + " = 1}"};
  for (const std::string& text : deep) {
    EXPECT_FALSE(parse(text));
    EXPECT_FALSE(parse(least, {"train.seed={" + text + "}"}));
  }
  EXPECT_FALSE(run_spec_from_json(repeat("[", 200000), "run.json"));
  EXPECT_FALSE(run_spec_from_json(
      R"({"schema": 1, "spec": {"a": )" + repeat("{\"a\":", 200000) + "1" + repeat("}", 200002), "run.json"));
  EXPECT_FALSE(parse(std::string(2000000, '#'))) << "larger than any spec";
}

TEST(RunSpec, AStrongerChoiceReplacesTheWholeWeakerOne) {
  const std::string shape = "model.layers = 2\nmodel.ffn = 64\n";
  EXPECT_EQ(good(least + shape, {"model.preset=llama-10m"}).spec.model.shape, (*find_preset("llama-10m"))->shape);
  EXPECT_EQ(good(least + shape, {"model.path=folder"}).spec.model.path, "folder");
  EXPECT_EQ(good(least + shape, {"model.layers=3"}).spec.model.shape.layers, 3);
  EXPECT_EQ(good(least + shape, {"model.layers=3"}).spec.model.shape.ffn, 64);

  const std::string sizes = "parallel.data = 4\n";
  EXPECT_FALSE(good(least + sizes).spec.parallel.automatic);
  EXPECT_EQ(good(least + sizes).origins.at("parallel.layout"), "spec.toml:5");
  EXPECT_FALSE(good(sizes + least + "parallel.layout = \"auto\"\n").spec.parallel.automatic)
      << "sizes in the same file win";
  const auto automatic = good(least + sizes, {"parallel.layout=auto"}).spec.parallel;
  EXPECT_TRUE(automatic.automatic);
  EXPECT_EQ(automatic.data, 1);
  EXPECT_EQ(
      good(least + std::string("data.validation = \"v.txt\"\n"), {"data.validation=0.1"}).spec.data.validation_share,
      0.1);
}

TEST(RunSpec, AShapeFollowsWhatIsGiven) {
  Model m = good(least + std::string("model.hidden = 64\n")).spec.model.shape;
  EXPECT_EQ(m.head_dim, 16);
  EXPECT_EQ(m.kv_heads, 2) << "the preset groups its queries";
  m = good(least, {"model.preset=gpt2-124m", "model.heads=6", "data.sequence=512"}).spec.model.shape;
  EXPECT_EQ(m.kv_heads, 6);
  EXPECT_EQ(m.head_dim, 128);
}

TEST(RunSpec, APathIsResolvedByItsReader) {
  ResolvedSpec resolved = good(least, {"model.path=folder", "data.sequence=256"});
  EXPECT_EQ(resolved.spec.model.shape, Model());
  Model shape = (*find_preset("llama-10m"))->shape;
  ASSERT_TRUE(set_model(resolved, shape, "folder/config.json"));
  EXPECT_EQ(resolved.spec.model.shape, shape);
  EXPECT_EQ(resolved.origins.at("model.layers"), "folder/config.json");
  shape.max_sequence = 128;
  auto too_short = set_model(resolved, shape, "folder/config.json");
  ASSERT_FALSE(too_short);
  EXPECT_THAT(too_short.error().what, HasSubstr("data.sequence is 256, above the model's max_sequence of 128"));
}

TEST(RunSpec, TheKeyTableIsComplete) {
  std::set<std::string> keys, variables;
  for (const KeyInfo& key : key_table()) {
    EXPECT_TRUE(keys.insert(key.key).second) << key.key << " twice";
    EXPECT_TRUE(variables.insert(environment_name(key.key)).second) << key.key << " has another key's variable";
    EXPECT_FALSE(key.meaning.empty()) << key.key;
    if (!key.default_value.empty()) {
      EXPECT_TRUE(parse(least, {key.key + "=" + key.default_value})) << key.key << " does not take its default";
    }
  }
  EXPECT_FALSE(variables.contains("YOKE_RUN_DIR")) << "the launcher's own variable";
  EXPECT_EQ(environment_name("train.optimizer.lr"), "YOKE_TRAIN_OPTIMIZER_LR");
}

TEST(RunSpec, JsonKeepsEverything) {
  for (const std::vector<std::string>& sets :
       {std::vector<std::string>{},
        {"model.path=folder"},
        {"parallel.data=2", "data.validation=v.txt", "train.micro_batch=2"},
        {"train.freeze=[\"a*\", \"b.?\"]", "train.loss_scale.initial=0x10", "parallel.zero=3", "parallel.shard_group=2",
         "offload.parameters=file", "offload.path=/f"},
        {"model.preset=gpt2-124m", "name=x", "train.optimizer.lr=0.1234567890123", "data.cache=/c\"\\ü"}}) {
    const ResolvedSpec before = good(least, sets);
    const std::string text = to_json(before);
    auto after = run_spec_from_json(text, "run.json");
    ASSERT_TRUE(after) << after.error().what << "\n" << text;
    EXPECT_EQ(to_json(*after), text);
    EXPECT_EQ(after->origins, before.origins);
    EXPECT_EQ(after->spec.model.shape, before.spec.model.shape);
    EXPECT_EQ(after->spec.parallel.automatic, before.spec.parallel.automatic);
  }
}

TEST(RunSpec, JsonKeepsAnyNumbers) {
  ASSERT_TRUE(rc::check([] {
    ResolvedSpec before = good(least);
    before.spec.train.seed = static_cast<std::uint64_t>(*rc::gen::inRange<std::int64_t>(0, INT64_MAX));
    before.spec.train.optimizer.lr = *rc::gen::inRange(1, 1000000) / 999983.0;
    before.spec.train.optimizer.beta2 = *rc::gen::inRange(0, 999999) / 1e6;
    before.spec.train.micro_batch = *rc::gen::element<std::int64_t>(0, 1, 2, 4, 8);
    auto after = run_spec_from_json(to_json(before), "run.json");
    RC_ASSERT(after.has_value());
    RC_ASSERT(after->spec.train.seed == before.spec.train.seed);
    RC_ASSERT(after->spec.train.optimizer.lr == before.spec.train.optimizer.lr);
    RC_ASSERT(after->spec.train.optimizer.beta2 == before.spec.train.optimizer.beta2);
    RC_ASSERT(after->spec.train.micro_batch == before.spec.train.micro_batch);
  }));
}

TEST(RunSpec, BadJsonIsAnError) {
  const std::string whole = to_json(good(least));
  const std::pair<std::string, const char*> cases[] = {
      {"", "run.json: not JSON at byte 1"},
      {"[]", "not a JSON object"},
      {"{}", "schema is not 1"},
      {R"({"schema": 2, "spec": {}})", "schema is not 1"},
      {R"({"schema": 1})", "spec is missing"},
      {R"({"schema": 1, "spec": {}})", "data.train is missing"},
      {R"({"schema": 1, "spec": {"train": {"stesp": 1}}})", "train.stesp is not a key"},
      {R"({"schema": 1, "spec": {"train": {"steps": null}}})", "train.steps is no value, not an integer"},
      {R"({"schema": 1, "spec": {"train": {"steps": 18446744073709551615}}})", "train.steps is no value"},
      {R"({"schema": 1, "spec": {"train": {"optimizer": {"lr": 1e999}}}})", "a number is too large"},
      {whole.substr(0, whole.size() / 2), "not JSON at byte"},
  };
  for (const auto& [text, what] : cases) {
    auto read = run_spec_from_json(text, "run.json");
    ASSERT_FALSE(read) << text;
    EXPECT_THAT(read.error().what, HasSubstr(what));
    EXPECT_EQ(read.error().kind, ErrorKind::usage);
  }
}

TEST(RunSpec, FreezeTakesOnePatternOrMany) {
  EXPECT_TRUE(good(least).spec.train.freeze.empty());
  EXPECT_THAT(good(least, {"train.freeze=model.embed_tokens*"}).spec.train.freeze,
              testing::ElementsAre("model.embed_tokens*"));
  EXPECT_THAT(good(least, {"train.freeze=[\"*\", \"h.?.ln_1.*\"]"}).spec.train.freeze,
              testing::ElementsAre("*", "h.?.ln_1.*"));
  EXPECT_TRUE(good(least + std::string("train.freeze = [\"a\"]\n"), {"train.freeze=[]"}).spec.train.freeze.empty());
}

TEST(RunSpec, WhatTheEngineLacksIsRefusedAndNamed) {
  const std::pair<std::vector<std::string>, const char*> cases[] = {
      {{"parallel.tensor=2"}, "parallel.tensor is 2"},
      {{"parallel.pipeline=2"}, "parallel.pipeline is 2"},
      {{"parallel.context=2"}, "parallel.context is 2"},
      {{"parallel.expert=2"}, "parallel.expert is 2"},
      {{"cluster.mode=threads", "cluster.device=cuda"}, "cluster.mode is \"threads\""},
      {{"cluster.nodes=2"}, "cluster.nodes is 2"}};
  for (const auto& [sets, what] : cases) {
    auto supported = check_supported(good(least, sets).spec);
    ASSERT_FALSE(supported) << what;
    EXPECT_THAT(supported.error().what, HasSubstr(what));
    EXPECT_EQ(supported.error().kind, ErrorKind::usage);
    EXPECT_FALSE(supported.error().hint.empty());
  }
  const std::vector<std::string> supported[] = {{"parallel.data=4", "cluster.mode=threads", "train.precision=bf16"},
                                                {"train.precision=fp16", "train.freeze=*.bias"},
                                                {"parallel.zero=1", "parallel.shard_group=4"},
                                                {"parallel.zero=2"},
                                                {"parallel.zero=3"}};
  for (const auto& sets : supported) EXPECT_TRUE(check_supported(good(least, sets).spec)) << sets[0];
}

TEST(RunSpec, EveryRecipeResolvesAndCanRun) {
  int count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(YOKE_SOURCE_DIR "/recipes")) {
    if (entry.path().extension() != ".toml") continue;
    ++count;
    auto parsed = parse_run_spec({read_file(entry.path()), entry.path().filename().string(), {}, {}});
    ASSERT_TRUE(parsed) << parsed.error().what;
    EXPECT_TRUE(check_supported(parsed->spec)) << entry.path();
    EXPECT_EQ(parsed->spec.name, entry.path().stem().string()) << "a recipe and its runs have one name";
  }
  EXPECT_GE(count, 3);
}

TEST(RunSpec, TheReferencePageIsUpToDate) {
  const std::filesystem::path page = YOKE_SOURCE_DIR "/docs/reference/run-spec.md";
  if (std::getenv("YOKE_UPDATE_GOLDEN") != nullptr) std::ofstream(page) << run_spec_reference();
  EXPECT_EQ(read_file(page), run_spec_reference()) << "run this test again with YOKE_UPDATE_GOLDEN=1 to write the page";
}

}  // namespace
}  // namespace yoke
