// The records of one rank put into the order that counts: steps undone by a restart taken out, restarts with what they
// cost.
#pragma once

#include <map>
#include <vector>

#include "core/report/report.h"

namespace yoke {

struct CountedStep {
  const StepEvent* event = nullptr;
  std::int64_t time_ns = 0;
  std::int64_t index = 0;  // steps that its attempt had done before
};

struct RankHistory {
  std::vector<CountedStep> steps;  // step numbers rise
  std::vector<const ValidationEvent*> validations;
  std::vector<const StartEvent*> starts;
  std::vector<ReportRestart> restarts;      // seen from this rank: without reasons
  std::vector<std::int64_t> restart_times;  // when each went on
  const EndEvent* end = nullptr;            // of the last attempt
};

// By rank; the pointers are into `records`.
std::map<std::int64_t, RankHistory> rank_histories(const std::vector<Record>& records);

}  // namespace yoke
