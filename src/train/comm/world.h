// Who a rank is, from the environment that torchrun, `yoke launch` and `yoke run` give (DESIGN 3.2).
#pragma once

#include <string>

#include "core/base/result.h"
#include "os/environment.h"

namespace yoke {

struct World {
  int rank = 0, size = 1;
  int local_rank = 0, local_size = 1;
  std::string master_addr = "127.0.0.1";
  int master_port = 0;
  bool agent_store = false;  // the launcher hosts the store (torchrun), not rank 0
  int attempt = 0;           // 0 first, then the number of restarts
  std::string host = {};     // tests give ranks of one machine several hosts; empty: ask the system

  bool operator==(const World&) const = default;
};

// Without RANK and WORLD_SIZE: a world of one. With only some of the variables, or values that contradict each other:
// an error (kind usage) that names the variable and its value.
Result<World> world_from_environment(const Environment& environment = current_environment());

}  // namespace yoke
