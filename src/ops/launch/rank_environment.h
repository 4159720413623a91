// What torchrun tells its workers about their place in the job, variable for variable, and what Yoke adds.
#pragma once

#include <string>

#include "os/environment.h"

namespace yoke {

struct RankPlace {
  int rank = 0;  // on one node also the local rank
  int size = 1;
  std::string master_address = "127.0.0.1";
  int master_port = 0;
  std::string role = "default";
  int restarts = 0;  // so far
  int max_restarts = 0;
  std::string run_id = "none";
  std::string error_file = {};  // where a script with torch's @record puts its exception
  std::string run_dir = {};     // empty: YOKE_RUN_DIR is left as it is
  std::string job_id = {};      // the mark by which leftovers are found
};

// `base` is the environment of the launcher; what it says about TORCH_NCCL_ASYNC_ERROR_HANDLING, OMP_NUM_THREADS and
// PYTHONUNBUFFERED stays. The last is set because the ranks' output passes through a pipe, which Python would fill
// before it shows a line.
Environment rank_environment(const Environment& base, const RankPlace& place);

}  // namespace yoke
