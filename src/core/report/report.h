// From what a run wrote to what a person wants to know about it.
//
// make_report() does the thinking; the headers beside this one (summary.h, report_json.h, html.h) only show it.
// Everything is measured or computed from measurements: what was not measured is absent, never 0.
//
// A step that was done again after a restart counts once, as it was done last. "Warm" steps leave out the first few of
// each attempt (a tenth of all steps, at least 1 and at most 5), in which caches fill and allocators grow.
//
// Of run.json the spec and its origins are read, of plan.json
//   {"layout": {axis: size, "zero": stage, ...}, "memory_bytes": {part: bytes, "total": bytes}}
// where everything may be absent.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/report/points.h"
#include "core/telemetry/record.h"

namespace yoke {

struct RunData {
  std::string folder;                 // of the run, as shown to people; may be empty
  std::vector<Record> records;        // of each rank in the order in which it wrote them
  std::string run_json, plan_json;    // empty: there is none
  std::vector<std::string> problems;  // met while reading the above
};

struct StepPart {
  std::string name;               // "communication_exposed"; as in telemetry, and "other" for what no part accounts for
  std::optional<double> seconds;  // mean of a warm step over all ranks
};

struct MemoryPart {
  std::string name;                           // as in telemetry
  std::optional<double> predicted, measured;  // bytes of a rank; measured: the highest of any rank and step
};

struct ReportRestart {
  std::int64_t attempt = 0;                // 1 for the first restart; 0: a person went on with the run (--resume)
  std::string reason;                      // empty: nobody wrote why
  std::optional<std::int64_t> at_step;     // steps done when it happened
  std::optional<std::int64_t> resumed_at;  // of which these were not lost
  std::optional<double> lost_seconds;      // from the last step before it until new steps began; not of a resume

  std::optional<std::int64_t> repeated_steps() const;
};

struct ReportMessage {
  bool error = false;
  std::int64_t rank = 0;  // that said it first
  std::string what, hint;
  std::int64_t count = 1;  // how often it was said, by whichever rank
};

struct ReportSpecValue {
  std::string key, value, origin;
};

struct Report {
  std::string folder, name;
  std::string outcome;                           // done | stopped | failed | unfinished (no end was recorded)
  std::string model, layout, precision, device;  // empty: not known
  std::optional<std::int64_t> world_size, parameters;
  std::vector<std::string> hosts;
  std::optional<std::int64_t> start_ns;   // Unix time of the first record
  std::optional<double> wall_seconds;     // first to last record, without the time between two sessions
  std::optional<double> startup_seconds;  // of the slowest rank, first attempt

  std::int64_t steps_done = 0;
  std::int64_t steps_skipped = 0;  // of those done: gradients overflowed in fp16, nothing was updated
  std::optional<std::int64_t> steps_planned;
  std::optional<std::int64_t> tokens;  // in the steps that count

  // x is the number of steps done.
  std::vector<Point> loss, validation_loss, grad_norm, tokens_per_second;
  std::optional<Point> first_loss, last_loss, best_loss;  // best of the finite ones
  std::optional<Point> last_validation, best_validation;
  std::int64_t losses_not_finite = 0;

  std::int64_t warm_steps = 0;  // that the next five are of
  std::optional<double> median_tokens_per_second, mean_tokens_per_second;
  std::optional<double> mean_mfu;
  std::optional<double> median_step_seconds, mean_step_seconds;
  std::vector<StepPart> step_parts;
  MemoryPart peak_memory{"peak_bytes", {}, {}};
  std::vector<MemoryPart> memory_parts;

  std::vector<ReportRestart> restarts;
  std::int64_t checkpoints = 0;
  std::optional<std::int64_t> last_checkpoint_step, last_checkpoint_bytes;
  std::optional<double> mean_checkpoint_seconds;  // in the background
  std::vector<ReportMessage> messages;

  std::vector<ReportSpecValue> spec;
  std::map<std::string, std::string> versions;
  std::vector<std::string> problems;  // that make this report less sure
};

Report make_report(const RunData& data);

}  // namespace yoke
