// From a spec file to all that a run needs to know before it starts.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/plan/plan.h"
#include "core/spec/run_spec.h"
#include "os/environment.h"
#include "os/memory_limit.h"

namespace yoke {

struct RunSetup {
  ResolvedSpec resolved;  // with the model's shape and the number of ranks
  Plan plan;
  std::int64_t ranks = 1;
};

// Reads the TOML file, the environment and --set; then as prepare_run().
Result<RunSetup> read_new_run(const std::string& file, const std::vector<std::string>& sets,
                              const Environment& environment);
// Reads run.json of an existing run folder; then as prepare_run().
Result<RunSetup> read_existing_run(const std::string& run_dir, const Environment& environment);

// Fills in cluster.per_node (the product of the sizes in [parallel] if they are given; else one rank for each GPU; on
// the CPU two ranks, or one if there is one core), checks that the engine can do it and that train.freeze fits the
// model, and chooses the layout.
Result<RunSetup> prepare_run(ResolvedSpec resolved, int cores, int gpus);

// Before anything is started, not when a run is only planned: kind environment when the spec wants GPUs that are not
// here.
Result<void> check_devices(const RunSpec& spec, int gpus);

// Before anything is started, on the CPU: kind failed when parameters, gradients and optimizer state alone are more
// than the ranks may have, together or each; the hint names the settings that would fit.
Result<void> check_memory(const RunSetup& setup, bool on_cpu, const std::optional<MemoryLimit>& together,
                          const std::optional<MemoryLimit>& each);

// The plan for people, a few lines.
std::string describe(const RunSetup& setup);

}  // namespace yoke
