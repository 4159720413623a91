// A whole run as one rank sees it: data, weights or checkpoint, the steps with their telemetry, validation,
// checkpoints, the end.
#pragma once

#include <c10/core/Device.h>

#include <atomic>
#include <cstdint>
#include <string>

#include "core/base/result.h"
#include "core/spec/run_spec.h"
#include "train/comm/communicator.h"
#include "train/comm/world.h"
#include "train/loop/event_log.h"

namespace yoke {

struct RankJob {
  RunSpec spec;
  std::string run_dir;  // empty: nothing is written (no telemetry, no checkpoints)
  World world;
  EventLog::Observer observer;
  const std::atomic<int>* stop_signal = nullptr;  // not 0: finish the step, write a checkpoint, return
  at::Device device = at::Device(at::kCPU);
  double predicted_bytes = 0;  // of this rank, for who runs out of memory; 0: not known
};

enum class RunOutcome { done, stopped };

// The communicator spans the data axis (all ranks). On an error the reason has been written to the telemetry already.
Result<RunOutcome> run_rank(const RankJob& job, Communicator& communicator);

// Validation takes at most this many global batches from the start of its tokens.
inline constexpr std::int64_t validation_batches = 32;

}  // namespace yoke
