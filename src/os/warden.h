// Programs that live and die together: when the owner lets go of them, or dies in whatever way (SIGKILL too), all of
// them and all their descendants are killed, those also that made themselves daemons.
//
// Between the owner and the programs stands a small forked process, the warden. It is the programs' parent, it adopts
// their orphans (PR_SET_CHILD_SUBREAPER), and it sees the owner's end as the end of a socket. It stamps each death when
// it happens, whatever the owner is busy with. If the warden itself is killed, the kernel kills the programs, and the
// owner sweeps up the rest by the job's mark (os/sweep.h).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "os/fd.h"
#include "os/process.h"
#include "os/process_table.h"

namespace yoke {

struct ProcessEnd {
  int index = 0;  // into the programs
  pid_t pid = 0;
  ExitStatus status = {};
  std::int64_t time_ns = 0;  // Unix time of its death
};

class ProcessSet {
 public:
  // Starts all programs, in order. If one cannot be started, none is left running. Their environments carry
  // YOKE_JOB_ID=job_id. If the owner is killed, so that it cannot do it itself, the folder `scratch` is deleted, and
  // those beside it of jobs inside this one ("scratch.*"); empty: none. Call from a process without other threads.
  static Result<ProcessSet> start(const std::vector<SpawnOptions>& programs, const std::string& job_id,
                                  const std::string& scratch = {});
  ProcessSet(ProcessSet&& other) noexcept = default;
  ProcessSet& operator=(ProcessSet&&) = delete;
  ~ProcessSet();  // kills and waits, if not finished

  const std::vector<pid_t>& pids() const { return pids_; }

  // To the program itself; SIGKILL goes to its process group. Those that ended are passed over.
  void signal(int index, int number);
  void signal_all(int number) { signal(-1, number); }

  // Readable when next_end() has something to say.
  int fd() const { return socket_.get(); }
  // The next death that is known, without blocking.
  std::optional<ProcessEnd> next_end();
  // All programs have ended and their descendants are killed, or the warden is gone. Known after next_end() gave
  // nothing.
  bool finished() const { return finished_; }
  // Once finished: the warden was killed before its work was done; what it looked after is killed too, unreported.
  bool lost() const { return lost_; }
  // Once finished: processes that did not die of SIGKILL, such as those that wait for a broken device.
  const std::vector<ProcessInfo>& survivors() const { return survivors_; }

 private:
  ProcessSet(Fd socket, pid_t warden, std::string job_id)
      : socket_(std::move(socket)), warden_(warden), job_id_(std::move(job_id)) {}
  void end();

  Fd socket_;
  pid_t warden_ = 0;
  std::string job_id_;
  std::vector<pid_t> pids_;
  std::vector<ProcessInfo> survivors_;
  bool finished_ = false, lost_ = false;
};

}  // namespace yoke
