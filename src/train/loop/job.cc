#include "train/loop/job.h"

#include <ATen/ATen.h>

#include "train/comm/c10d.h"
#include "train/comm/shared_memory.h"
#include "train/comm/world.h"

namespace yoke {

Result<std::unique_ptr<Job>> Job::from_environment(Seconds timeout) {
  YOKE_TRY(World world, world_from_environment());
  std::unique_ptr<Communicator> communicator;
  if (world.size > 1) {
    YOKE_TRY(communicator, connect(world, "data", Transport::cpu, timeout));
  } else {
    communicator = std::move(thread_group("data", 1, timeout).front());
  }
  return from_communicator(std::move(communicator), world.local_rank, world.attempt);
}

std::unique_ptr<Job> Job::from_communicator(std::unique_ptr<Communicator> communicator, int local_rank, int attempt) {
  return std::unique_ptr<Job>(new Job(std::move(communicator), local_rank, attempt));
}

Result<void> Job::sum(std::string name, at::Tensor tensor) {
  YOKE_TRY(WorkPtr work, communicator_->all_reduce(std::move(name), std::move(tensor)));
  return work->wait();
}

Result<std::vector<std::int64_t>> Job::gather(std::string name, std::int64_t mine) {
  at::Tensor all = at::empty({size()}, at::kLong);
  YOKE_TRY(WorkPtr work, communicator_->all_gather(std::move(name), all, at::full({1}, mine, at::kLong)));
  YOKE_TRY_VOID(work->wait());
  const auto* values = all.const_data_ptr<std::int64_t>();
  return std::vector<std::int64_t>(values, values + size());
}

Result<void> Job::agree(const std::string& name, const Result<void>& mine) {
  at::Tensor failures = at::full({1}, mine ? 0 : 1, at::kLong);
  Result<void> told = sum(name, failures);
  if (!mine) return mine;
  YOKE_TRY_VOID(told);
  if (auto count = failures.item<std::int64_t>(); count > 0)
    return fail(ErrorKind::failed, fmt::format("{} failed on {} of {} ranks", name, count, size()),
                "see the error of that rank");
  return {};
}

}  // namespace yoke
