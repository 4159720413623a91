#include "train/parallel/gather_on_use.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <chrono>
#include <shared_mutex>
#include <unordered_map>

#include "train/comm/memory.h"

namespace yoke {
namespace {

// Who looks after the memory of a storage. Ranks may be threads of one process.
struct Registry {
  std::shared_mutex mutex;
  std::unordered_map<const void*, std::pair<GatherOnUse*, int>> units;  // by storage
};

Registry& registry() {
  static auto* instance = new Registry;  // never destroyed: tensors of other static objects may still be used
  return *instance;
}

std::unique_ptr<at::ObserverContext> on_operation(const at::RecordFunction& function) {
  for (const c10::IValue& input : function.inputs()) {
    if (input.isTensor())
      GatherOnUse::before_use(input.toTensor());
    else if (input.isTensorList())
      for (const at::Tensor& tensor : input.toTensorVector()) GatherOnUse::before_use(tensor);
  }
  return nullptr;
}

}  // namespace

GatherOnUse::GatherOnUse(FlatParameters& flat) : flat_(flat) {
  std::unique_lock lock(registry().mutex);
  for (int u = 0; u < flat.unit_count(); ++u)
    registry().units[flat.values(u).storage().unsafeGetStorageImpl()] = {this, u};
}

GatherOnUse::~GatherOnUse() {
  std::unique_lock lock(registry().mutex);
  for (int u = 0; u < flat_.unit_count(); ++u) registry().units.erase(flat_.values(u).storage().unsafeGetStorageImpl());
}

void GatherOnUse::before_use(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  std::pair<GatherOnUse*, int> found{};
  {
    std::shared_lock lock(registry().mutex);
    auto unit = registry().units.find(tensor.storage().unsafeGetStorageImpl());
    if (unit == registry().units.end()) return;
    found = unit->second;
  }
  found.first->use(found.second);
}

at::CallbackHandle GatherOnUse::watch_operations() {
  return at::addThreadLocalCallback(
      at::RecordFunctionCallback(&on_operation).needsInputs(true).scopes({at::RecordScope::FUNCTION}));
}

void GatherOnUse::stop_watching(at::CallbackHandle handle) { at::removeCallback(handle); }

void GatherOnUse::begin(const std::string& pass) {
  pass_ = pass;
  auto order = orders_.find(pass);
  known_ = order == orders_.end() ? nullptr : &order->second;
  seen_.clear();
  current_ = -1;
}

Result<Seconds> GatherOnUse::end() {
  if (ahead_) {
    if (auto done = ahead_->work->wait(); !done && !error_) error_ = done.error();
    flat_.close_value_shard(ahead_->unit, ahead_->shard, /*changed=*/false);
    ahead_.reset();
  }
  if (!keep_all_) release_all();
  orders_[pass_] = seen_;
  current_ = -1;
  if (error_) return tl::unexpected(*std::exchange(error_, std::nullopt));
  return Seconds(std::exchange(waited_, 0));
}

Result<void> GatherOnUse::gather_all() {
  keep_all_ = true;
  for (int u = 0; u < flat_.unit_count() && !error_; ++u) use(u);
  current_ = -1;
  if (error_) return tl::unexpected(*std::exchange(error_, std::nullopt));
  return {};
}

void GatherOnUse::release_all() {
  for (int unit : held_) flat_.give_values(unit, {});
  held_.clear();
  keep_all_ = false;
  current_ = -1;
}

Result<void> GatherOnUse::take_part(int unit) {
  YOKE_TRY(Ahead started, start(unit));
  return started.work->wait();
}

bool GatherOnUse::held(int unit) const { return std::find(held_.begin(), held_.end(), unit) != held_.end(); }

// The unit that was used after this one in the last pass, at the same place; -1 if that is not known.
int GatherOnUse::next_after(int unit) {
  std::size_t place = seen_.size();
  seen_.push_back(unit);
  if (known_ == nullptr || place + 1 >= known_->size() || (*known_)[place] != unit) return -1;
  return (*known_)[place + 1];
}

Result<GatherOnUse::Ahead> GatherOnUse::start(int unit) {
  at::NoGradGuard no_grad;
  Ahead started{unit, {}, {}, nullptr};
  {
    MemoryScope scope(MemoryPart::communication);
    started.buffer = at::empty({flat_.map().units[static_cast<std::size_t>(unit)].padded}, flat_.value_options());
  }
  YOKE_TRY(started.shard, flat_.open_value_shard(unit));
  YOKE_TRY(started.work,
           flat_.groups().shard->all_gather(fmt::format("parameters, unit {}", unit), started.buffer, started.shard));
  return started;
}

void GatherOnUse::hold(Ahead gathered) {
  auto began = std::chrono::steady_clock::now();
  if (auto done = gathered.work->wait(); !done) error_ = done.error();
  waited_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  flat_.close_value_shard(gathered.unit, gathered.shard, /*changed=*/false);
  flat_.give_values(gathered.unit, gathered.buffer);
  held_.push_back(gathered.unit);
}

void GatherOnUse::use(int unit) {
  if (unit == current_) return;
  current_ = unit;
  int next = next_after(unit);
  if (held(unit)) {
    std::rotate(std::find(held_.begin(), held_.end(), unit), std::find(held_.begin(), held_.end(), unit) + 1,
                held_.end());
  } else {
    while (held_.size() >= most_held && !keep_all_) {
      flat_.give_values(held_.front(), {});
      held_.erase(held_.begin());
    }
    if (ahead_ && ahead_->unit == unit) {
      Ahead gathered = *std::move(ahead_);
      ahead_.reset();
      hold(std::move(gathered));
    } else if (!error_) {
      if (Result<void> told = announce_ ? announce_(unit) : Result<void>(); !told)
        error_ = told.error();
      else if (auto started = start(unit))
        hold(*std::move(started));
      else
        error_ = started.error();
    }
    if (error_ && !held(unit)) {
      // Whoever reads the values must find memory; the pass ends with the error.
      at::NoGradGuard no_grad;
      flat_.give_values(unit,
                        at::zeros({flat_.map().units[static_cast<std::size_t>(unit)].padded}, flat_.value_options()));
      held_.push_back(unit);
    }
  }
  if (next >= 0 && !held(next) && !ahead_ && !error_ && !announce_) {
    if (auto started = start(next))
      ahead_ = *std::move(started);
    else
      error_ = started.error();
    std::size_t after_next = seen_.size() + 1;
    if (after_next < known_->size()) flat_.expect_value_shard((*known_)[after_next]);
  }
}

}  // namespace yoke
