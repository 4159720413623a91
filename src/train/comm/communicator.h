// Collectives on a group of ranks.
//
// A collective is started by every rank of its group in the same order, runs in the background, and is waited for. Each
// has a name, a sequence number within its group and a timeout; when it does not finish, the error names all three and
// the ranks that never started it. Tensors must be contiguous and must stay untouched between start and wait.
//
// One communicator belongs to one rank and is used from one thread at a time (starts may come from autograd's hooks,
// which run on the thread that called backward). Implementations: shared_memory.h (ranks are threads of one process, or
// processes of one host), hosts.h (over several hosts, or through NCCL).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"

namespace yoke {

enum class ReduceOp { sum, max, min };

struct Collective {
  enum class Kind { all_reduce, broadcast, all_gather, reduce_scatter, all_to_all, barrier };
  Kind kind = Kind::barrier;
  std::string name;         // what it is for: "gradients, bucket 3"
  std::int64_t number = 0;  // within the group, from 0
  ReduceOp op = ReduceOp::sum;
  int root = 0;
  at::Tensor input, output;  // the same tensor where the operation works in place
};

// "all_reduce 'gradients, bucket 3' (number 17 of group data)"
std::string describe(const Collective& collective, std::string_view group);

// A started collective. Dropping it without wait() is allowed once the communicator is no longer used.
class Work {
 public:
  virtual ~Work() = default;
  // Returns when the result is there. Kind timeout: some ranks never came; kind failed: a peer is gone.
  virtual Result<void> wait() = 0;
  // Whether wait() would return at once. Makes progress, but does not wait for anybody.
  virtual bool done() = 0;
};
using WorkPtr = std::unique_ptr<Work>;

class Communicator {
 public:
  Communicator(std::string group, int rank, int size) : group_(std::move(group)), rank_(rank), size_(size) {}
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  const std::string& group() const { return group_; }
  int rank() const { return rank_; }
  int size() const { return size_; }

  // In place.
  Result<WorkPtr> all_reduce(std::string name, at::Tensor tensor, ReduceOp op = ReduceOp::sum);
  Result<WorkPtr> broadcast(std::string name, at::Tensor tensor, int root = 0);
  // output holds size() times input, in rank order.
  Result<WorkPtr> all_gather(std::string name, at::Tensor output, at::Tensor input);
  // input holds size() times output; rank r gets the r-th part of the sum.
  Result<WorkPtr> reduce_scatter(std::string name, at::Tensor output, at::Tensor input);
  // Both hold size() parts of equal size; part r of the output is part rank() of rank r's input.
  Result<WorkPtr> all_to_all(std::string name, at::Tensor output, at::Tensor input);
  Result<void> barrier(std::string name);

  // An uninitialised flat tensor that this group's collectives reach without copies where that is possible. For large
  // buffers that live long. Throws std::bad_alloc like any tensor.
  virtual at::Tensor shared_empty(std::int64_t numel, at::TensorOptions options);

  // A group of some of these ranks (given by their numbers here, ascending, this one among them), in which they are
  // numbered anew. Every rank of this group calls it at the same time; ranks may name different groups, as long as
  // these do not overlap.
  virtual Result<std::unique_ptr<Communicator>> subgroup(const std::string& name, const std::vector<int>& ranks) = 0;

  // Tells ranks that wait for this one in memory shared with them which rank it gave up for, by the number that people
  // know.
  virtual void gives_up_for(int /*number*/) {}

  // Bytes that this rank has sent, by the textbook volume of each collective (ring): all_reduce 2(n-1)/n of its
  // bytes, the others (n-1)/n of the larger tensor.
  std::int64_t sent_bytes() const { return sent_bytes_; }

 protected:
  // For communicators that are made of others: starts it there, as that one's next.
  static Result<WorkPtr> start_on(Communicator& other, Collective collective) {
    return other.launch(std::move(collective));
  }

 private:
  virtual Result<WorkPtr> start(Collective collective) = 0;
  Result<WorkPtr> launch(Collective collective);

  std::string group_;
  int rank_;
  int size_;
  std::int64_t number_ = 0;
  std::int64_t sent_bytes_ = 0;
};

}  // namespace yoke
