#include "train/loop/event_log.h"

#include <cerrno>
#include <cstring>

#include "core/telemetry/tfevents.h"
#include "os/clock.h"
#include "os/file.h"

namespace yoke {
namespace {

Result<std::FILE*> open_for_append(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "ab");
  if (file == nullptr)
    return fail(ErrorKind::environment, fmt::format("{} cannot be written: {}", path, std::strerror(errno)),
                "is the run folder writable?");
  std::setvbuf(file, nullptr, _IOFBF, 1 << 16);
  return file;
}

}  // namespace

Result<std::unique_ptr<EventLog>> EventLog::open(const std::string& run_dir, std::int64_t rank, Observer observer) {
  std::unique_ptr<EventLog> log(new EventLog(rank, std::move(observer)));
  if (run_dir.empty()) return log;
  YOKE_TRY_VOID(make_folders(run_dir + "/events"));
  log->jsonl_path_ = fmt::format("{}/events/rank-{:05d}.jsonl", run_dir, rank);
  YOKE_TRY(std::FILE * jsonl, open_for_append(log->jsonl_path_));
  log->jsonl_.reset(jsonl);
  if (rank == 0) {
    YOKE_TRY_VOID(make_folders(run_dir + "/tensorboard"));
    std::int64_t now = unix_ns();
    log->board_path_ = fmt::format("{}/tensorboard/events.out.tfevents.{}.yoke", run_dir, now);
    YOKE_TRY(std::FILE * board, open_for_append(log->board_path_));
    log->board_.reset(board);
    YOKE_TRY_VOID(append(log->board_, log->board_path_, tfevents_header(static_cast<double>(now) / 1e9)));
  }
  return log;
}

Result<void> EventLog::append(const File& file, const std::string& path, const std::string& bytes) {
  if (bytes.empty()) return {};
  if (std::fwrite(bytes.data(), 1, bytes.size(), file.get()) == bytes.size() && std::fflush(file.get()) == 0) return {};
  return fail(ErrorKind::environment,
              fmt::format("{} could not take {} bytes more: {}", path, bytes.size(), std::strerror(errno)),
              "free space on that disk; the run goes on from its last checkpoint");
}

Result<void> EventLog::write(Event event) {
  Record record{unix_ns(), rank_, std::move(event)};
  if (jsonl_ != nullptr) YOKE_TRY_VOID(append(jsonl_, jsonl_path_, to_json_line(record) + "\n"));
  if (board_ != nullptr) YOKE_TRY_VOID(append(board_, board_path_, tfevents_record(record)));
  if (observer_) observer_(record);
  return {};
}

}  // namespace yoke
