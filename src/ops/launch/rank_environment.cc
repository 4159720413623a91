#include "ops/launch/rank_environment.h"

#include "os/sweep.h"

namespace yoke {

Environment rank_environment(const Environment& base, const RankPlace& place) {
  Environment e = base;
  std::string rank = std::to_string(place.rank), size = std::to_string(place.size);
  e["RANK"] = e["LOCAL_RANK"] = e["ROLE_RANK"] = rank;
  e["WORLD_SIZE"] = e["LOCAL_WORLD_SIZE"] = e["ROLE_WORLD_SIZE"] = size;
  e["GROUP_RANK"] = "0";
  e["GROUP_WORLD_SIZE"] = "1";
  e["ROLE_NAME"] = place.role;
  e["MASTER_ADDR"] = place.master_address;
  e["MASTER_PORT"] = std::to_string(place.master_port);
  e["TORCHELASTIC_RESTART_COUNT"] = std::to_string(place.restarts);
  e["TORCHELASTIC_MAX_RESTARTS"] = std::to_string(place.max_restarts);
  e["TORCHELASTIC_RUN_ID"] = place.run_id;
  e["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  e["TORCHELASTIC_ERROR_FILE"] = place.error_file;
  e[job_variable] = place.job_id;
  if (!place.run_dir.empty()) e["YOKE_RUN_DIR"] = place.run_dir;

  e.emplace("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1");
  if (place.size > 1) e.emplace("OMP_NUM_THREADS", "1");
  e.emplace("PYTHONUNBUFFERED", "1");
  return e;
}

}  // namespace yoke
