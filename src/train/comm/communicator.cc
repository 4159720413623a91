#include "train/comm/communicator.h"

#include <ATen/ATen.h>

namespace yoke {
namespace {

const char* kind_name(Collective::Kind kind) {
  switch (kind) {
    case Collective::Kind::all_reduce:
      return "all_reduce";
    case Collective::Kind::broadcast:
      return "broadcast";
    case Collective::Kind::all_gather:
      return "all_gather";
    case Collective::Kind::reduce_scatter:
      return "reduce_scatter";
    case Collective::Kind::all_to_all:
      return "all_to_all";
    case Collective::Kind::barrier:
      return "barrier";
  }
  return "collective";
}

class Done final : public Work {
  Result<void> wait() override { return {}; }
  bool done() override { return true; }
};

}  // namespace

std::string describe(const Collective& collective, std::string_view group) {
  return fmt::format("{} '{}' (number {} of group {})", kind_name(collective.kind), collective.name, collective.number,
                     group);
}

Result<WorkPtr> Communicator::launch(Collective c) {
  c.number = number_++;
  YOKE_CHECK(c.kind == Collective::Kind::barrier || (c.input.is_contiguous() && c.output.is_contiguous()),
             "{}: tensors must be contiguous", describe(c, group_));
  if (size_ == 1) {
    if (c.kind != Collective::Kind::barrier && !c.output.is_same(c.input))
      c.output.view({-1}).copy_(c.input.view({-1}));
    return std::make_unique<Done>();
  }
  if (c.kind != Collective::Kind::barrier) {
    auto bytes = static_cast<double>(std::max(c.input.nbytes(), c.output.nbytes()));
    double volume = bytes * (size_ - 1) / size_ * (c.kind == Collective::Kind::all_reduce ? 2 : 1);
    sent_bytes_ += static_cast<std::int64_t>(volume);
  }
  return start(std::move(c));
}

Result<WorkPtr> Communicator::all_reduce(std::string name, at::Tensor tensor, ReduceOp op) {
  Collective c{
      .kind = Collective::Kind::all_reduce, .name = std::move(name), .op = op, .input = tensor, .output = tensor};
  return launch(std::move(c));
}

Result<WorkPtr> Communicator::broadcast(std::string name, at::Tensor tensor, int root) {
  Collective c{
      .kind = Collective::Kind::broadcast, .name = std::move(name), .root = root, .input = tensor, .output = tensor};
  return launch(std::move(c));
}

Result<WorkPtr> Communicator::all_gather(std::string name, at::Tensor output, at::Tensor input) {
  YOKE_CHECK(output.numel() == input.numel() * size_, "all_gather '{}': {} elements into {}", name, input.numel(),
             output.numel());
  Collective c{.kind = Collective::Kind::all_gather,
               .name = std::move(name),
               .input = std::move(input),
               .output = std::move(output)};
  return launch(std::move(c));
}

Result<WorkPtr> Communicator::reduce_scatter(std::string name, at::Tensor output, at::Tensor input) {
  YOKE_CHECK(input.numel() == output.numel() * size_, "reduce_scatter '{}': {} elements into {}", name, input.numel(),
             output.numel());
  Collective c{.kind = Collective::Kind::reduce_scatter,
               .name = std::move(name),
               .input = std::move(input),
               .output = std::move(output)};
  return launch(std::move(c));
}

Result<WorkPtr> Communicator::all_to_all(std::string name, at::Tensor output, at::Tensor input) {
  YOKE_CHECK(input.numel() == output.numel() && input.numel() % size_ == 0, "all_to_all '{}': {} elements into {}",
             name, input.numel(), output.numel());
  Collective c{.kind = Collective::Kind::all_to_all,
               .name = std::move(name),
               .input = std::move(input),
               .output = std::move(output)};
  return launch(std::move(c));
}

at::Tensor Communicator::shared_empty(std::int64_t numel, at::TensorOptions options) {
  return at::empty({numel}, options);
}

Result<void> Communicator::barrier(std::string name) {
  YOKE_TRY(WorkPtr work, launch({.kind = Collective::Kind::barrier, .name = std::move(name)}));
  return work->wait();
}

}  // namespace yoke
