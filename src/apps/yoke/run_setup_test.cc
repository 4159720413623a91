#include "apps/yoke/run_setup.h"

#include <gmock/gmock.h>

#include "core/spec/hf_config.h"
#include "os/testing.h"

namespace yoke {
namespace {

const std::string spec_text =
    "name = 't'\n[model]\npreset = 'llama-10m'\n[data]\ntrain = ['x.txt']\n[train]\nsteps = 5\nglobal_batch = 8\n"
    "[cluster]\ndevice = 'cpu'\n";

ResolvedSpec resolved(const std::vector<std::string>& sets = {}) {
  auto result = parse_run_spec({spec_text, "t.toml", sets, {}});
  EXPECT_TRUE(result) << result.error().what;
  return *result;
}

TEST(RunSetup, RanksOnTheCpu) {
  EXPECT_EQ(prepare_run(resolved(), 16, 0)->ranks, 2);
  EXPECT_EQ(prepare_run(resolved(), 1, 0)->ranks, 1);
  EXPECT_EQ(prepare_run(resolved(), 16, 8)->ranks, 2);  // device = cpu
  EXPECT_EQ(prepare_run(resolved({"cluster.per_node=4"}), 16, 0)->ranks, 4);
}

TEST(RunSetup, FreezeThatDoesNotFitTheModel) {
  auto setup = prepare_run(resolved({"train.freeze=transformer.*"}), 2, 0);
  ASSERT_FALSE(setup);
  EXPECT_EQ(setup.error().kind, ErrorKind::usage);
  EXPECT_THAT(setup.error().what, testing::HasSubstr("transformer.*"));
}

TEST(RunSetup, RanksOnGpus) {
  auto setup = prepare_run(resolved({"cluster.device=auto"}), 16, 4);
  ASSERT_TRUE(setup);
  EXPECT_EQ(setup->ranks, 4);
  EXPECT_EQ(setup->plan.layout.data, 4);
  EXPECT_EQ(setup->resolved.spec.cluster.per_node, 4);
  EXPECT_EQ(setup->resolved.origins["cluster.per_node"], "auto: 4 GPUs");
  auto none = check_devices(resolved({"cluster.device=cuda"}).spec, 0);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().kind, ErrorKind::environment);
}

TEST(RunSetup, NoGpusToCount) {
  auto setup = prepare_run(resolved({"cluster.device=cuda"}), 16, 0);
  ASSERT_FALSE(setup);
  EXPECT_EQ(setup.error().kind, ErrorKind::environment);
  EXPECT_EQ(prepare_run(resolved({"cluster.device=cuda", "cluster.per_node=8"}), 16, 0)->ranks, 8);  // a plan
}

TEST(RunSetup, SizesSayHowManyRanks) {
  auto setup = prepare_run(resolved({"parallel.data=8"}), 2, 0);
  ASSERT_TRUE(setup) << setup.error().what;
  EXPECT_EQ(setup->ranks, 8);
}

TEST(RunSetup, BatchThatCannotBeShared) {
  auto setup = prepare_run(resolved({"cluster.per_node=3"}), 4, 0);
  ASSERT_FALSE(setup);
  EXPECT_EQ(setup.error().kind, ErrorKind::usage);
}

TEST(RunSetup, ModelFromAFolder) {
  TestFolder folder;
  folder.write("t.toml",
               "name = 't'\n[model]\npath = '" + folder.path("model") +
                   "'\n[data]\ntrain = ['x.txt']\n[train]\nsteps = 5\nglobal_batch = 8\n[cluster]\ndevice = 'cpu'\n");
  auto absent = read_new_run(folder.path("t.toml"), {}, {});
  ASSERT_FALSE(absent);
  EXPECT_THAT(absent.error().what, testing::HasSubstr(folder.path("model/config.json")));
  Model model = resolved().spec.model.shape;
  folder.write("model/config.json", hf_config_from_model(model, "float32"));
  auto setup = read_new_run(folder.path("t.toml"), {"train.steps=7"}, {});
  ASSERT_TRUE(setup) << setup.error().what;
  EXPECT_EQ(setup->resolved.spec.model.shape, model);
  EXPECT_EQ(setup->resolved.spec.train.steps, 7);
}

TEST(RunSetup, ThereAndBack) {
  TestFolder folder;
  auto setup = prepare_run(resolved(), 2, 0);
  ASSERT_TRUE(setup);
  folder.write("run.json", to_json(setup->resolved));
  auto again = read_existing_run(folder.path(), {});
  ASSERT_TRUE(again) << again.error().what;
  EXPECT_EQ(again->ranks, setup->ranks);
  EXPECT_EQ(again->plan.layout, setup->plan.layout);
}

TEST(RunSetup, Describe) {
  std::string text = describe(*prepare_run(resolved(), 2, 0));
  for (const char* part :
       {"run        t\n", "2 (data 2)", "5 steps", "8 sequences of 256 tokens", "a rank, predicted"}) {
    EXPECT_THAT(text, testing::HasSubstr(part));
  }
}

TEST(RunSetup, StatesThatDoNotFit) {
  auto setup = prepare_run(resolved({"cluster.device=cpu", "cluster.per_node=4"}), 4, 0);
  ASSERT_TRUE(setup);
  const MemoryPrediction& m = setup->plan.memory;
  const double states = (m.parameters + m.gradients + m.optimizer).value;
  const MemoryLimit enough{Bytes(4 * states), "the cgroup's memory.max"},
      most{Bytes(3.6 * states), "the cgroup's memory.max"}, half{Bytes(2 * states), "the cgroup's memory.max"},
      each{Bytes(0.4 * states), "ulimit -v"};
  EXPECT_TRUE(check_memory(*setup, true, enough, std::nullopt));
  EXPECT_TRUE(check_memory(*setup, false, half, std::nullopt));
  auto together = check_memory(*setup, true, half, std::nullopt);
  ASSERT_FALSE(together);
  EXPECT_EQ(together.error().kind, ErrorKind::failed);
  EXPECT_NE(together.error().what.find("for the 4 ranks here, but the cgroup's memory.max is"), std::string::npos);
  // fp32, 4 ranks: 16 bytes a parameter; stage 1 10, stage 2 7, stage 3 4. Half is 8.
  EXPECT_EQ(together.error().hint.find("zero = 1"), std::string::npos);
  EXPECT_NE(together.error().hint.find("activations not counted: parallel.zero = 2"), std::string::npos);
  // Offload leaves 8 bytes a parameter, and some pages.
  EXPECT_EQ(together.error().hint.find("offload"), std::string::npos);
  auto barely = check_memory(*setup, true, most, std::nullopt);
  ASSERT_FALSE(barely);
  EXPECT_THAT(barely.error().hint, testing::HasSubstr("offload.optimizer = \"file\" needs"));
  auto alone = check_memory(*setup, true, enough, each);
  ASSERT_FALSE(alone);
  EXPECT_NE(alone.error().what.find("ulimit -v"), std::string::npos);
  EXPECT_EQ(alone.error().hint.find("zero = 2"), std::string::npos);
  EXPECT_NE(alone.error().hint.find("zero = 3"), std::string::npos);
}

}  // namespace
}  // namespace yoke
