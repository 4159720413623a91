// One program as one rank of a job: alone, under `yoke launch`, `yoke run` or torchrun.
//
//   YOKE_TRY(auto job, Job::from_environment());
//   YOKE_TRY_VOID(job->sum("correct answers", count));   // count now holds the sum over all ranks
//
// Every rank makes the same collective calls in the same order. A job is used from one thread at a time, and everything
// that was made with it must be gone before it. Tensors live on the CPU.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/base/units.h"
#include "train/comm/communicator.h"

namespace yoke {

class Job {
 public:
  // Meets the other ranks that RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT speak of; without RANK and WORLD_SIZE it
  // is a job of one rank. `timeout` holds for the meeting and for every collective. Errors: kind usage names the
  // variable that is wrong, kind timeout the ranks that did not come.
  static Result<std::unique_ptr<Job>> from_environment(Seconds timeout = Seconds(600));

  // On a group that is there already (threads of one process, say).
  static std::unique_ptr<Job> from_communicator(std::unique_ptr<Communicator> communicator, int local_rank = 0,
                                                int attempt = 0);

  int rank() const { return communicator_->rank(); }
  int size() const { return communicator_->size(); }
  int local_rank() const { return local_rank_; }  // on this node
  int attempt() const { return attempt_; }        // 0 first, then the number of the launcher's restarts
  Communicator& communicator() { return *communicator_; }

  // In place, and returns when it is there. The name appears in the error of a collective that does not finish.
  Result<void> sum(std::string name, at::Tensor tensor);
  // Every rank's number, in rank order.
  Result<std::vector<std::int64_t>> gather(std::string name, std::int64_t mine);
  // The ranks tell each other how it went: where one failed, all get an error (that one its own).
  Result<void> agree(const std::string& name, const Result<void>& mine);

 private:
  Job(std::unique_ptr<Communicator> communicator, int local_rank, int attempt)
      : communicator_(std::move(communicator)), local_rank_(local_rank), attempt_(attempt) {}
  std::unique_ptr<Communicator> communicator_;
  int local_rank_, attempt_;
};

}  // namespace yoke
