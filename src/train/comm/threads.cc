#include "train/comm/threads.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <chrono>
#include <condition_variable>
#include <map>
#include <mutex>
#include <optional>

#include "core/base/text.h"

namespace yoke {
namespace {

// The meeting place of one collective.
struct Meeting {
  std::vector<Collective> parts;  // by rank
  std::vector<bool> present;
  int arrived = 0;
  int left = 0;
  bool done = false;
  std::optional<Error> error;
};

struct Group {
  std::string name;
  int size;
  std::chrono::duration<double> timeout;
  std::mutex mutex;
  std::condition_variable changed;
  std::map<std::int64_t, Meeting> meetings;  // by number
  std::vector<bool> gone;                    // ranks that dropped their communicator
};

void combine(at::Tensor& sum, const at::Tensor& next, ReduceOp op) {
  switch (op) {
    case ReduceOp::sum:
      sum.add_(next);
      break;
    case ReduceOp::max:
      at::maximum_out(sum, sum, next);
      break;
    case ReduceOp::min:
      at::minimum_out(sum, sum, next);
      break;
  }
}

// Carries out a collective whose parts are all there.
void perform(std::vector<Collective>& parts) {
  at::NoGradGuard no_grad;
  const Collective& first = parts.front();
  auto size = static_cast<std::int64_t>(parts.size());
  switch (first.kind) {
    case Collective::Kind::all_reduce: {
      at::Tensor sum = first.input.clone();
      for (std::int64_t r = 1; r < size; ++r) combine(sum, parts[r].input, first.op);
      for (Collective& part : parts) part.output.copy_(sum);
      break;
    }
    case Collective::Kind::reduce_scatter: {
      for (std::int64_t to = 0; to < size; ++to) {
        at::Tensor out = parts[to].output.view({-1});
        std::int64_t n = out.numel();
        at::Tensor sum = parts[0].input.view({-1}).narrow(0, to * n, n).clone();
        for (std::int64_t r = 1; r < size; ++r) combine(sum, parts[r].input.view({-1}).narrow(0, to * n, n), first.op);
        out.copy_(sum);
      }
      break;
    }
    case Collective::Kind::all_gather:
      for (Collective& part : parts) {
        std::int64_t n = part.input.numel();
        for (std::int64_t r = 0; r < size; ++r)
          part.output.view({-1}).narrow(0, r * n, n).copy_(parts[r].input.view({-1}));
      }
      break;
    case Collective::Kind::broadcast:
      for (std::int64_t r = 0; r < size; ++r)
        if (r != first.root) parts[r].output.copy_(parts[first.root].input);
      break;
    case Collective::Kind::barrier:
      break;
  }
}

bool same_operation(const Collective& a, const Collective& b) {
  return a.kind == b.kind && a.name == b.name && a.op == b.op && a.root == b.root &&
         (a.kind == Collective::Kind::barrier ||
          (a.input.numel() == b.input.numel() && a.input.scalar_type() == b.input.scalar_type()));
}

std::string ranks_where(const std::vector<bool>& flags, bool value) {
  std::vector<std::string> ranks;
  for (std::size_t r = 0; r < flags.size(); ++r)
    if (flags[r] == value) ranks.push_back(std::to_string(r));
  return join(ranks, ", ");
}

class ThreadWork final : public Work {
 public:
  ThreadWork(std::shared_ptr<Group> group, std::int64_t number, std::string what)
      : group_(std::move(group)), number_(number), what_(std::move(what)) {}

  Result<void> wait() override {
    std::unique_lock lock(group_->mutex);
    Meeting& meeting = group_->meetings.at(number_);
    auto settled = [&] { return meeting.done || meeting.error || !ranks_that_never_come(meeting).empty(); };
    bool in_time = group_->changed.wait_for(lock, group_->timeout, settled);
    if (!meeting.done && !meeting.error) {
      std::string absent = ranks_where(meeting.present, false);
      if (in_time)
        meeting.error.emplace(ErrorKind::failed,
                              fmt::format("{} failed: rank {} ended before it", what_, ranks_that_never_come(meeting)),
                              "see the first error of that rank");
      else
        meeting.error.emplace(
            ErrorKind::timeout,
            fmt::format("{} did not finish within {}: absent ranks: {}", what_, format_seconds(group_->timeout.count()),
                        absent),
            "those ranks are slow, stuck or took another path; raise train.collective_timeout if they are slow");
    }
    std::optional<Error> error = meeting.error;
    if (++meeting.left == group_->size) group_->meetings.erase(number_);
    if (error) return tl::unexpected(*error);
    return {};
  }

 private:
  // Absent ranks that have dropped their communicators; empty: none.
  std::string ranks_that_never_come(const Meeting& meeting) const {
    std::vector<bool> lost(group_->gone.size());
    for (std::size_t r = 0; r < lost.size(); ++r) lost[r] = group_->gone[r] && !meeting.present[r];
    return ranks_where(lost, true);
  }

  std::shared_ptr<Group> group_;
  std::int64_t number_;
  std::string what_;
};

class ThreadCommunicator final : public Communicator {
 public:
  ThreadCommunicator(std::shared_ptr<Group> group, int rank)
      : Communicator(group->name, rank, group->size), group_(std::move(group)) {}

  ~ThreadCommunicator() override {
    std::lock_guard lock(group_->mutex);
    group_->gone[rank()] = true;
    group_->changed.notify_all();
  }

 private:
  Result<WorkPtr> start(Collective collective) override {
    std::unique_lock lock(group_->mutex);
    Meeting& meeting = group_->meetings[collective.number];
    if (meeting.parts.empty()) {
      meeting.parts.resize(group_->size);
      meeting.present.resize(group_->size);
    }
    for (int r = 0; r < group_->size && !meeting.error; ++r)
      if (meeting.present[r] && !same_operation(meeting.parts[r], collective))
        meeting.error.emplace(
            ErrorKind::failed,
            fmt::format("ranks disagree: rank {} starts {}, rank {} {}", r, describe(meeting.parts[r], group_->name),
                        rank(), describe(collective, group_->name)),
            "every rank must start the same collectives in the same order");
    std::int64_t number = collective.number;
    std::string what = describe(collective, group_->name);
    meeting.parts[rank()] = std::move(collective);
    meeting.present[rank()] = true;
    if (++meeting.arrived == group_->size && !meeting.error) {
      // Nobody touches a full meeting until done is set, so the work can be done outside the lock.
      lock.unlock();
      perform(meeting.parts);
      lock.lock();
      meeting.done = true;
      meeting.parts.clear();
    }
    group_->changed.notify_all();
    return std::make_unique<ThreadWork>(group_, number, std::move(what));
  }

  std::shared_ptr<Group> group_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> thread_group(const std::string& name, int size, Seconds timeout) {
  auto group = std::make_shared<Group>();
  group->name = name;
  group->size = size;
  group->timeout = std::chrono::duration<double>(timeout.value);
  group->gone.resize(size);
  std::vector<std::unique_ptr<Communicator>> communicators;
  for (int r = 0; r < size; ++r) communicators.push_back(std::make_unique<ThreadCommunicator>(group, r));
  return communicators;
}

}  // namespace yoke
