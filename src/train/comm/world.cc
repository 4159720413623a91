#include "train/comm/world.h"

#include "core/base/text.h"

namespace yoke {
namespace {

Result<int> number(const Environment& environment, const std::string& variable, int low, int high) {
  std::optional<std::string> text = find_variable(environment, variable);
  if (!text)
    return fail(
        ErrorKind::usage, variable + " is not set although RANK or WORLD_SIZE is",
        "start the worker with yoke run, yoke launch or torchrun, or unset RANK and WORLD_SIZE for a single rank");
  std::optional<std::int64_t> value = parse_integer(*text);
  if (!value || *value < low || *value > high)
    return fail(ErrorKind::usage,
                fmt::format("{} is '{}', which is not a number from {} to {}", variable, *text, low, high),
                "it comes from the launcher's environment");
  return static_cast<int>(*value);
}

}  // namespace

Result<World> world_from_environment(const Environment& environment) {
  World world;
  if (!find_variable(environment, "RANK") && !find_variable(environment, "WORLD_SIZE")) return world;
  constexpr int most = 1 << 20;
  YOKE_TRY(world.size, number(environment, "WORLD_SIZE", 1, most));
  YOKE_TRY(world.rank, number(environment, "RANK", 0, world.size - 1));
  if (find_variable(environment, "LOCAL_RANK")) {
    YOKE_TRY(world.local_rank, number(environment, "LOCAL_RANK", 0, most));
  }
  if (find_variable(environment, "LOCAL_WORLD_SIZE")) {
    YOKE_TRY(world.local_size, number(environment, "LOCAL_WORLD_SIZE", 1, world.size));
  }
  if (world.size > 1) {
    YOKE_TRY(world.master_port, number(environment, "MASTER_PORT", 1, 65535));
    std::optional<std::string> address = find_variable(environment, "MASTER_ADDR");
    if (!address || address->empty())
      return fail(ErrorKind::usage, fmt::format("MASTER_ADDR is not set although WORLD_SIZE is {}", world.size),
                  "it names the host of rank 0");
    world.master_addr = *address;
  }
  world.agent_store = find_variable(environment, "TORCHELASTIC_USE_AGENT_STORE").value_or("False") == "True";
  if (find_variable(environment, "TORCHELASTIC_RESTART_COUNT")) {
    YOKE_TRY(world.attempt, number(environment, "TORCHELASTIC_RESTART_COUNT", 0, most));
  }
  return world;
}

}  // namespace yoke
