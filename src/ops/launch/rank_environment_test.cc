#include "ops/launch/rank_environment.h"

#include <gtest/gtest.h>

namespace yoke {
namespace {

TEST(RankEnvironment, ExactlyTorchrunsAndYokes) {
  RankPlace place{.rank = 2,
                  .size = 4,
                  .master_port = 12345,
                  .role = "trainer",
                  .restarts = 1,
                  .max_restarts = 3,
                  .run_id = "id",
                  .error_file = "/tmp/e.json",
                  .run_dir = "/runs/x",
                  .job_id = "j-1"};
  EXPECT_EQ(rank_environment({{"HOME", "/root"}, {"RANK", "9"}}, place), (Environment{
                                                                             {"HOME", "/root"},
                                                                             {"RANK", "2"},
                                                                             {"LOCAL_RANK", "2"},
                                                                             {"ROLE_RANK", "2"},
                                                                             {"WORLD_SIZE", "4"},
                                                                             {"LOCAL_WORLD_SIZE", "4"},
                                                                             {"ROLE_WORLD_SIZE", "4"},
                                                                             {"GROUP_RANK", "0"},
                                                                             {"GROUP_WORLD_SIZE", "1"},
                                                                             {"ROLE_NAME", "trainer"},
                                                                             {"MASTER_ADDR", "127.0.0.1"},
                                                                             {"MASTER_PORT", "12345"},
                                                                             {"TORCHELASTIC_RESTART_COUNT", "1"},
                                                                             {"TORCHELASTIC_MAX_RESTARTS", "3"},
                                                                             {"TORCHELASTIC_RUN_ID", "id"},
                                                                             {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                                                                             {"TORCHELASTIC_ERROR_FILE", "/tmp/e.json"},
                                                                             {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"},
                                                                             {"OMP_NUM_THREADS", "1"},
                                                                             {"PYTHONUNBUFFERED", "1"},
                                                                             {"YOKE_JOB_ID", "j-1"},
                                                                             {"YOKE_RUN_DIR", "/runs/x"},
                                                                         }));
}

TEST(RankEnvironment, WhatTheUserSetStays) {
  Environment base{{"TORCH_NCCL_ASYNC_ERROR_HANDLING", "3"}, {"OMP_NUM_THREADS", "8"}, {"PYTHONUNBUFFERED", ""}};
  Environment e = rank_environment(base, {.size = 2});
  for (const auto& [name, value] : base) EXPECT_EQ(e[name], value) << name;
}

TEST(RankEnvironment, OneRankMayUseAllThreads) {
  EXPECT_FALSE(rank_environment({}, {.size = 1}).contains("OMP_NUM_THREADS"));
}

TEST(RankEnvironment, NoRunFolder) { EXPECT_FALSE(rank_environment({}, {}).contains("YOKE_RUN_DIR")); }

}  // namespace
}  // namespace yoke
