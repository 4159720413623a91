// What a rank says about itself: one JSON object a line, append only (DESIGN 3.4). Base units, stable names; a field
// that is not known is absent, never 0.
#pragma once

#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "core/base/result.h"

namespace yoke {

inline constexpr int telemetry_schema = 1;

struct StepSeconds {  // of one optimiser step
  double total = 0;
  std::optional<double> data;  // waiting for data
  std::optional<double> forward, backward, optimizer;
  std::optional<double> communication_exposed;  // waiting for collectives that computation did not hide
  std::optional<double> checkpoint;             // waiting for the checkpoint writer
  bool operator==(const StepSeconds&) const = default;
};

struct MemoryBytes {
  std::optional<std::int64_t> peak_bytes;  // all tensors at once, at the highest point
  std::optional<std::int64_t> parameters, gradients, optimizer, activations, communication, checkpoint;
  bool operator==(const MemoryBytes&) const = default;
};

struct StartEvent {
  std::int64_t world_size = 0;
  std::int64_t parameters = 0;
  std::string device;  // "cpu", "cuda:0"
  std::string host;
  std::int64_t pid = 0;
  std::int64_t attempt = 0;               // 0 first, then the number of restarts
  std::int64_t first_step = 0;            // where training goes on
  std::optional<std::string> checkpoint;  // that it goes on from
  std::map<std::string, std::string> versions;
  std::optional<double> startup_seconds;  // process start to first step
  bool operator==(const StartEvent&) const = default;
};

struct StepEvent {
  std::int64_t step = 0;  // from 0
  double loss = 0;        // mean over the valid tokens of the global batch
  double grad_norm = 0;   // before clipping
  double learning_rate = 0;
  std::optional<double> loss_scale;
  std::int64_t tokens = 0;  // of the global batch
  StepSeconds seconds;
  MemoryBytes memory;
  std::map<std::string, std::int64_t> sent_bytes;  // by axis
  std::optional<double> tokens_per_second;         // of the whole job
  std::optional<double> mfu;
  bool operator==(const StepEvent&) const = default;

  // With fp16: the gradients overflowed, so nothing was updated.
  bool skipped() const { return loss_scale && !std::isfinite(grad_norm); }
};

struct ValidationEvent {
  std::int64_t step = 0;  // after which it was measured, from 0
  double loss = 0;
  std::int64_t tokens = 0;
  bool operator==(const ValidationEvent&) const = default;
};

struct CheckpointEvent {
  std::int64_t step = 0;  // steps done, as in the folder's name
  std::string path;
  double seconds = 0;  // in the background
  std::int64_t bytes = 0;
  bool operator==(const CheckpointEvent&) const = default;
};

struct MessageEvent {  // kinds warning and error
  bool error = false;
  std::string what, hint;
  bool operator==(const MessageEvent&) const = default;
};

struct RestartEvent {  // written by the launcher
  std::int64_t attempt = 0;
  std::string reason;  // "rank 1 was killed by SIGKILL"
  bool operator==(const RestartEvent&) const = default;
};

struct EndEvent {
  std::int64_t step = 0;  // steps done
  std::string outcome;    // done | stopped | failed
  bool operator==(const EndEvent&) const = default;
};

using Event =
    std::variant<StartEvent, StepEvent, ValidationEvent, CheckpointEvent, MessageEvent, RestartEvent, EndEvent>;

struct Record {
  std::int64_t time_ns = 0;  // Unix time in nanoseconds; "time" in the file: seconds with nine decimals
  std::int64_t rank = 0;     // -1: the launcher
  Event event;
  bool operator==(const Record&) const = default;
};

// One line of JSON without a line break. Numbers round-trip; those that JSON has no word for are the strings "nan",
// "inf" and
// "-inf". Bytes that are not UTF-8 become U+FFFD.
std::string to_json_line(const Record& record);
// Unknown fields are a newer writer's and are skipped. Errors are of kind failed: no JSON, an unknown kind or schema, a
// missing field that the struct needs, a field of another type.
Result<Record> record_from_json_line(std::string_view line);

}  // namespace yoke
