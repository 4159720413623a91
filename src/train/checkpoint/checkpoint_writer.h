// Writes checkpoints in the background, each rank its share; they appear complete or not at all.
//
// The ranks (threads or processes) meet in the file system only. Each writes its files into a hidden folder and then a
// small "done" file; rank 0 waits for all of those, adds index, config and manifest, and renames the folder. A kill at
// any moment leaves the checkpoints that were complete, and at most hidden leftovers that rank 0 removes later.
//
// Every rank makes one writer and submits the same steps in the same order. A writer belongs to one thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <future>
#include <mutex>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "train/checkpoint/manifest.h"
#include "train/checkpoint/tensor_view.h"

namespace yoke {

struct CheckpointJob {
  std::int64_t step = 0;
  std::vector<NamedTensor> model,
      optimizer;                        // this rank's share, whole tensors; their owners live until they are written
  std::string config_json, state_json;  // rank 0's are used; state_json is a JSON object
};

struct FinishedCheckpoint {
  std::int64_t step = 0;
  std::string path;
  double seconds = 0;  // in the background, with the waiting for the other ranks
  std::int64_t bytes = 0;
  std::string note;  // what could not be tidied up afterwards; mostly empty
};

class CheckpointWriter {
 public:
  struct Options {
    std::string root;  // the folder of checkpoints; made when absent
    std::int64_t rank = 0, ranks = 1;
    std::int64_t keep = 1;  // complete ones, the newest; at least 1
    double timeout = 600;   // seconds that rank 0 waits for the others
    // Equal on all ranks and never used before below this root, else leftovers could be taken for new: a number that
    // rank 0 draws and hands out, say. Part of a file name.
    std::string attempt = "0";
  };
  explicit CheckpointWriter(Options options);
  // Without finish() before it: stops waiting for other ranks, so the last checkpoint may not appear.
  ~CheckpointWriter();

  // Takes the job, after the one before is written. If that one failed: its error, and this job is not taken. (Writing
  // again is then possible with a new submit on every rank.)
  Result<void> submit(CheckpointJob job);
  Result<void> finish();  // waits for what was submitted

  // The checkpoints that have become complete since the last call. Only rank 0 knows of them.
  std::vector<FinishedCheckpoint> take_finished();
  double waited_seconds() const { return waited_seconds_; }  // in submit and finish, all together

 private:
  Result<void> write(CheckpointJob job, std::int64_t sequence);

  const Options options_;
  std::int64_t sequence_ = 0;  // of submit calls: tells two writings of one step apart
  double waited_seconds_ = 0;
  std::atomic<bool> abandoned_ = false;
  std::mutex mutex_;
  std::vector<FinishedCheckpoint> finished_;  // guarded by mutex_
  std::future<Result<void>> pending_;         // last: its destructor waits for the thread, which uses the rest
};

}  // namespace yoke
