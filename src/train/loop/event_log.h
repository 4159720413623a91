// Where a rank's telemetry goes: events/rank-00000.jsonl, and for rank 0 TensorBoard's event file too.
#pragma once

#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <string>

#include "core/base/result.h"
#include "core/telemetry/record.h"

namespace yoke {

class EventLog {
 public:
  using Observer = std::function<void(const Record&)>;  // called after each record is written

  // Appends to the files of an earlier attempt. With run_dir empty nothing is written and only the observer is called.
  static Result<std::unique_ptr<EventLog>> open(const std::string& run_dir, std::int64_t rank, Observer observer);

  // Each record is one write() to the file, so that a killed rank leaves whole lines. A full disk is an error (kind
  // environment).
  Result<void> write(Event event);

 private:
  struct CloseFile {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  using File = std::unique_ptr<std::FILE, CloseFile>;

  EventLog(std::int64_t rank, Observer observer) : rank_(rank), observer_(std::move(observer)) {}
  static Result<void> append(const File& file, const std::string& path, const std::string& bytes);

  std::int64_t rank_;
  Observer observer_;
  std::string jsonl_path_, board_path_;
  File jsonl_, board_;
};

}  // namespace yoke
