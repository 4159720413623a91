#include "train/parallel/flat_parameters.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <unordered_set>

#include "core/parallel/offload_pages.h"
#include "train/comm/memory.h"

namespace yoke {

namespace {

// A parameter's place in the flat gradients as a tensor of its own: torch::optim's zero_grad() detaches gradients in
// place, which autograd forbids for views.
at::Tensor gradient_place(const at::Tensor& unit, const FlatEntry& entry) {
  return FlatParameters::view(unit, entry).variable_data();
}

std::vector<int> units_of(const std::vector<ParameterSize>& sizes, const FlatOptions& options, double value_bytes,
                          double gradient_bytes) {
  if (options.zero == 3) return layer_units(sizes, options.least_unit_bytes / value_bytes);
  return bucket_units(sizes, options.bucket_bytes / gradient_bytes, options.first_bucket_bytes / gradient_bytes);
}

// This rank's shard of a flat unit, in place.
at::Tensor shard_of(const at::Tensor& unit, const Communicator& group) {
  std::int64_t size = unit.numel() / group.size();
  return unit.narrow(0, group.rank() * size, size);
}

}  // namespace

Result<std::unique_ptr<FlatParameters>> FlatParameters::make(
    const std::vector<std::pair<std::string, at::Tensor>>& named, DataGroups groups, const FlatOptions& options) {
  std::unique_ptr<FlatParameters> flat(new FlatParameters);
  flat->zero_ = options.zero;
  flat->groups_ = groups;
  auto first = std::find_if(named.begin(), named.end(), [](const auto& each) { return each.second.requires_grad(); });
  if (first == named.end()) return fail(ErrorKind::usage, "the module has no parameter that needs a gradient");
  std::unordered_set<const void*> seen;
  std::vector<ParameterSize> sizes;
  for (const auto& [name, parameter] : named) {
    if (!seen.insert(parameter.unsafeGetTensorImpl()).second) continue;
    bool trainable = parameter.requires_grad();
    if (parameter.options().dtype() != first->second.options().dtype() ||
        parameter.device() != first->second.device() || !parameter.is_floating_point()) {
      if (!trainable && options.zero < 3) continue;
      return fail(ErrorKind::usage,
                  fmt::format("parameter {} is {} on {}, but {} is {} on {}", name,
                              c10::toString(parameter.scalar_type()), parameter.device().str(), first->first,
                              c10::toString(first->second.scalar_type()), first->second.device().str()),
                  "move the module to one floating-point dtype and one device first");
    }
    flat->entries_.push_back({name, parameter, {}});
    sizes.push_back({name, parameter.numel(), trainable});
  }

  at::NoGradGuard no_grad;
  flat->value_options_ = flat->entries_.front().parameter.options().requires_grad(false);
  bool fp64 = flat->value_options_.dtype() == at::kDouble;
  flat->gradient_options_ = flat->value_options_.dtype(fp64 ? at::kDouble : at::kFloat);
  auto value_bytes = static_cast<double>(flat->value_options_.dtype().itemsize()),
       gradient_bytes = static_cast<double>(flat->gradient_options_.dtype().itemsize());
  flat->map_ = make_shard_map(sizes, units_of(sizes, options, value_bytes, gradient_bytes), groups.shard->size());
  for (std::size_t i = 0; i < flat->entries_.size(); ++i) flat->entries_[i].place = flat->map_.entries[i];

  const ShardMap& map = flat->map_;
  Communicator& reducer = groups.shard->size() > 1 ? *groups.shard : *groups.replica;
  auto zeros = [&](Communicator& owner, std::int64_t numel, const at::TensorOptions& dtype, MemoryPart part) {
    MemoryScope scope(part);
    at::Tensor tensor = owner.shared_empty(numel, dtype);
    return tensor.zero_();
  };
  at::Tensor all_values, all_value_shards, all_gradient_shards;
  std::int64_t shards = map.padded() / map.shards;
  if (options.zero < 3)
    all_values = zeros(*groups.shard, map.padded(), flat->value_options_, MemoryPart::parameters);
  else if (options.values == Offload::file)
    YOKE_TRY_VOID(flat->make_value_file(options.folder));
  else if (options.values == Offload::host && !flat->value_options_.device().is_cpu())
    all_value_shards = at::zeros({shards}, flat->value_options_.device(at::kCPU));
  else
    all_value_shards = zeros(*groups.shard, shards, flat->value_options_, MemoryPart::parameters);
  flat->values_on_host_ = all_value_shards.defined() && all_value_shards.device() != flat->value_options_.device();
  std::int64_t trainable = 0;  // frozen units have no gradients
  for (const ShardUnit& unit : map.units) trainable += unit.trainable ? unit.padded : 0;
  if (options.zero < 2)
    flat->all_gradients_ = zeros(reducer, trainable, flat->gradient_options_, MemoryPart::gradients);
  else
    all_gradient_shards =
        zeros(*groups.replica, trainable / map.shards, flat->gradient_options_, MemoryPart::gradients);
  std::int64_t next = 0;  // in the gradients
  for (int u = 0; u < flat->unit_count(); ++u) {
    const ShardUnit& shape = map.units[static_cast<std::size_t>(u)];
    Unit unit;
    if (options.zero < 3) {
      unit.values = all_values.narrow(0, shape.first, shape.padded);
      unit.value_shard = shard_of(unit.values, *groups.shard);
    } else {
      unit.values = at::empty({shape.padded}, flat->value_options_);
      if (all_value_shards.defined())
        unit.value_shard = all_value_shards.narrow(0, shape.first / map.shards, map.shard(u));
    }
    if (shape.trainable && options.zero < 2) {
      unit.gradients = flat->all_gradients_.narrow(0, next, shape.padded);
      unit.gradient_shard = shard_of(unit.gradients, *groups.shard);
    } else if (shape.trainable) {
      unit.gradient_shard = all_gradient_shards.narrow(0, next / map.shards, map.shard(u));
    }
    next += shape.trainable ? shape.padded : 0;
    flat->units_.push_back(std::move(unit));
    if (options.zero == 3) flat->give_values(u, {});
  }
  for (FlatEntry& entry : flat->entries_) {
    const Unit& unit = flat->units_[static_cast<std::size_t>(entry.place.unit)];
    at::Tensor place = view(unit.values, entry);
    if (entry.parameter.storage().data() == nullptr) {
      // It had no memory (ParameterMemory::none).
    } else if (options.zero < 3) {
      place.copy_(entry.parameter.detach());
    } else {
      at::Tensor old = entry.parameter.detach().reshape({-1});
      ShardPart part = part_in_shard(map, entry.place, groups.shard->rank());
      YOKE_TRY(at::Tensor shard, flat->open_value_shard(entry.place.unit));
      shard.narrow(0, part.at, part.numel).copy_(old.narrow(0, part.first, part.numel));
      flat->close_value_shard(entry.place.unit, shard, /*changed=*/true);
    }
    entry.parameter.set_data(place);
    if (options.zero < 2 && flat->wide() && entry.parameter.requires_grad())
      entry.parameter.mutable_grad() = gradient_place(unit.gradients, entry);
  }
  return flat;
}

// A page for each unit.
Result<void> FlatParameters::make_value_file(const std::string& folder) {
  constexpr std::int64_t buffers = offload_pages_in_memory;
  std::vector<std::size_t> sizes;
  std::int64_t longest = 0;
  for (int u = 0; u < static_cast<int>(map_.units.size()); ++u) {
    longest = std::max(longest, map_.shard(u));
    sizes.push_back(static_cast<std::size_t>(map_.shard(u)) * value_options_.dtype().itemsize());
  }
  {
    MemoryScope scope(MemoryPart::parameters);
    pages_ = groups_.shard->shared_empty(buffers * longest, value_options_.device(at::kCPU));
  }
  std::vector<std::span<std::byte>> memory;
  for (std::int64_t i = 0; i < buffers; ++i) {
    at::Tensor page = pages_.narrow(0, i * longest, longest);
    memory.emplace_back(static_cast<std::byte*>(page.data_ptr()), page.nbytes());
  }
  YOKE_TRY(file_, PagedFile::create(folder, sizes, std::move(memory)));
  return {};
}

void FlatParameters::expect_value_shard(int unit) {
  if (file_ != nullptr) file_->expect(static_cast<std::size_t>(unit));
}

Result<at::Tensor> FlatParameters::open_value_shard(int unit) {
  at::Tensor shard = value_shard(unit);
  if (file_ != nullptr) {
    YOKE_TRY(std::span<std::byte> bytes, file_->open(static_cast<std::size_t>(unit)));
    auto offset = bytes.data() - static_cast<std::byte*>(pages_.data_ptr());
    shard = pages_.narrow(0, offset / static_cast<std::int64_t>(pages_.itemsize()), map_.shard(unit));
  }
  return shard.to(value_options_.device());
}

void FlatParameters::close_value_shard(int unit, const at::Tensor& shard, bool changed) {
  if (!values_elsewhere()) return;
  at::NoGradGuard no_grad;
  const bool away = !shard.is_cpu();
  if (file_ == nullptr) {
    if (changed && away) units_[static_cast<std::size_t>(unit)].value_shard.copy_(shard);
    return;
  }
  if (changed && away) {
    auto bytes = file_->open(static_cast<std::size_t>(unit));  // still open: at once
    if (bytes) at::from_blob(bytes->data(), {shard.numel()}, value_options_.device(at::kCPU)).copy_(shard);
  }
  file_->close(static_cast<std::size_t>(unit), changed);
}

at::Tensor FlatParameters::view(const at::Tensor& unit, const FlatEntry& entry) {
  return unit.narrow(0, entry.place.offset, entry.place.numel).view(entry.parameter.sizes());
}

void FlatParameters::give_values(int unit, const at::Tensor& buffer) {
  const c10::Storage& place = values(unit).storage();
  c10::DataPtr data(nullptr, value_options_.device());
  if (buffer.defined()) data = buffer.storage().set_data_ptr(c10::DataPtr(nullptr, value_options_.device()));
  place.set_data_ptr(std::move(data));
}

void FlatParameters::zero_gradients() {
  if (zero_ < 2) all_gradients_.zero_();
  for (FlatEntry& entry : entries_) {
    if (!entry.parameter.requires_grad()) continue;
    if (zero_ >= 2 || !wide())
      entry.parameter.mutable_grad().reset();
    else if (!entry.parameter.grad().defined())
      entry.parameter.mutable_grad() = gradient_place(gradients(entry.place.unit), entry);
  }
  if (zero_ >= 2)
    for (const Unit& unit : units_)
      if (unit.gradient_shard.defined()) unit.gradient_shard.zero_();
}

void FlatParameters::open_gradients(int unit) {
  at::Tensor& gradients = units_[static_cast<std::size_t>(unit)].gradients;
  if (gradients.defined()) return;
  const ShardUnit& shape = map_.units[static_cast<std::size_t>(unit)];
  MemoryScope scope(MemoryPart::communication);
  gradients = groups_.shard->shared_empty(shape.padded, gradient_options_);
  gradients.narrow(0, shape.numel, shape.padded - shape.numel).zero_();
}

void FlatParameters::collect_gradient(const FlatEntry& entry) {
  at::NoGradGuard no_grad;
  at::Tensor& grad = const_cast<at::Tensor&>(entry.parameter).mutable_grad();
  if (zero_ >= 2) {
    if (!grad.defined()) return;
    open_gradients(entry.place.unit);
    view(gradients(entry.place.unit), entry).copy_(grad);
    grad.reset();
    return;
  }
  at::Tensor place = gradient_place(gradients(entry.place.unit), entry);
  if (!wide()) {
    if (grad.defined()) place.add_(grad);
    grad.reset();
    return;
  }
  if (grad.defined() && grad.const_data_ptr() == place.const_data_ptr()) return;
  // Somebody set the gradient to none since (an optimizer's zero_grad): autograd started a tensor of its own, or none.
  if (grad.defined())
    place.copy_(grad);
  else
    place.zero_();
  grad = place;
}

void FlatParameters::zero_missing(int unit, const std::vector<bool>& arrived) {
  open_gradients(unit);
  for (std::size_t i = 0; i < entries_.size(); ++i)
    if (entries_[i].place.unit == unit && !arrived[i]) view(gradients(unit), entries_[i]).zero_();
}

at::Tensor FlatParameters::take_gradients(int unit) {
  return std::exchange(units_[static_cast<std::size_t>(unit)].gradients, at::Tensor());
}

Result<std::map<std::string, at::Tensor>> FlatParameters::gather(const std::string& name, int unit,
                                                                 const at::Tensor& shard) const {
  at::Tensor whole = shard;
  if (map_.shards > 1) {
    {
      MemoryScope scope(MemoryPart::communication);
      whole = at::empty({map_.units[static_cast<std::size_t>(unit)].padded}, shard.options());
    }
    YOKE_TRY(WorkPtr work, groups_.shard->all_gather(name, whole, shard));
    YOKE_TRY_VOID(work->wait());
  }
  std::map<std::string, at::Tensor> tensors;
  for (const FlatEntry& entry : entries_)
    if (entry.place.unit == unit) tensors[entry.name] = view(whole, entry);
  return tensors;
}

Result<void> FlatParameters::gather_values(bool frozen_too) {
  if (map_.shards == 1 || zero_ == 3) return {};
  std::vector<WorkPtr> works;
  for (int u = 0; u < unit_count(); ++u) {
    if (!map_.units[static_cast<std::size_t>(u)].trainable && !frozen_too) continue;
    YOKE_TRY(WorkPtr work, groups_.shard->all_gather(fmt::format("parameters, unit {}", u), values(u), value_shard(u)));
    works.push_back(std::move(work));
  }
  for (WorkPtr& work : works) YOKE_TRY_VOID(work->wait());
  return {};
}

}  // namespace yoke
