// For tests: records of small runs whose numbers are easy to work out by hand.
#pragma once

#include "core/report/report.h"

namespace yoke {

constexpr std::int64_t second_ns = 1'000'000'000;

inline StepEvent sample_step(std::int64_t step, double loss, double seconds, std::int64_t tokens = 100) {
  StepEvent event;
  event.step = step;
  event.loss = loss;
  event.grad_norm = 1;
  event.tokens = tokens;
  event.seconds.total = seconds;
  return event;
}

inline StartEvent sample_start(std::int64_t attempt, std::int64_t first_step) {
  StartEvent event;
  event.world_size = 2;
  event.parameters = 1'000'000;
  event.device = "cpu";
  event.host = "box";
  event.attempt = attempt;
  event.first_step = first_step;
  event.versions = {{"libtorch", "2.13.0"}};
  return event;
}

// Rank 0 does steps 0 to 4 of 6, is restarted after its checkpoint of 3 steps, and does 3 to 5. A step takes 1 s and
// ends at the full second; the second attempt begins at 20 s.
inline RunData restarted_run() {
  RunData data;
  auto add = [&](std::int64_t seconds, std::int64_t rank, Event event) {
    data.records.push_back({seconds * second_ns, rank, std::move(event)});
  };
  add(10, 0, sample_start(0, 0));
  for (int s = 0; s < 5; ++s) {
    add(11 + s, 0, sample_step(s, 9 - s, 1));
    if (s == 2) add(13, 0, CheckpointEvent{3, "checkpoints/step-00000003", 0.5, 4096});
    if (s == 3) add(14, 0, ValidationEvent{3, 6.5, 10});
  }
  add(18, -1, RestartEvent{1, "rank 1 was killed by SIGKILL"});
  add(20, 0, sample_start(1, 3));
  for (int s = 3; s < 6; ++s) add(21 + s - 3, 0, sample_step(s, 6.25 - s, 1));
  add(24, 0, ValidationEvent{5, 1.5, 10});
  add(25, 0, EndEvent{6, "done"});
  return data;
}

}  // namespace yoke
