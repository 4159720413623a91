// A module's parameters and gradients in flat buffers, cut by a shard map: what the reduction, the optimizer, the
// gradient norm and checkpoints work on.
//
// What this rank keeps depends on the ZeRO stage (d = ranks of the shard group):
//
//             values of the parameters      gradients, fp32 (fp64 for fp64 parameters)
//   0, 1      all                           all
//   2         all                           its shard; a unit's all while backward works on it
//   3         its shard; a unit's all       the same
//             while it is in use
//
// In stage 3 the shards of the values may lie elsewhere (FlatOptions::values): in host memory, or in a file.
//
// Parameters become views of the units' values. In stages 0 and 1, where the parameters have the gradients' dtype, each
// parameter's .grad is the place in the flat gradients, and autograd adds to it in place; otherwise gradients are moved
// there as they arrive (collect_gradient) and .grad is dropped.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "core/base/result.h"
#include "core/parallel/shard_map.h"
#include "core/spec/run_spec.h"
#include "os/paged_file.h"
#include "train/comm/communicator.h"

namespace yoke {

// The data axis in two directions: the ranks that hold the shards of one copy, and those that hold the same shard of
// each copy. Without ZeRO every rank is a copy of its own.
struct DataGroups {
  Communicator* shard = nullptr;
  Communicator* replica = nullptr;
};

struct FlatOptions {
  int zero = 0;
  double bucket_bytes = 25.0 * (1 << 20);  // of gradients (stages 0 to 2)
  double first_bucket_bytes = 1.0 * (1 << 20);
  double least_unit_bytes = 1.0 * (1 << 20);  // of values (stage 3)
  Offload values = Offload::none;             // where shards of the values lie (stage 3)
  std::string folder;                         // of the file
};

struct FlatEntry {
  std::string name;
  at::Tensor parameter;
  ShardEntry place;
};

class FlatParameters {
 public:
  // Parameters that appear twice (tied) count once, under their first name. All must have one dtype and device: kind
  // usage names the first that does not; before stage 3, those that need no gradient are then left out. The groups must
  // outlive it.
  static Result<std::unique_ptr<FlatParameters>> make(const std::vector<std::pair<std::string, at::Tensor>>& named,
                                                      DataGroups groups, const FlatOptions& options);
  FlatParameters(const FlatParameters&) = delete;
  FlatParameters& operator=(const FlatParameters&) = delete;

  const ShardMap& map() const { return map_; }
  const std::vector<FlatEntry>& entries() const { return entries_; }
  int unit_count() const { return static_cast<int>(map_.units.size()); }
  int zero() const { return zero_; }
  DataGroups groups() const { return groups_; }
  at::TensorOptions value_options() const { return value_options_; }
  at::TensorOptions gradient_options() const { return gradient_options_; }
  bool wide() const { return value_options_.dtype() == gradient_options_.dtype(); }  // parameters are not 16-bit

  // Flat, this rank's shard of a unit. Values that lie elsewhere are on the device from open to close; two may be open
  // at a time. One that is expected is read ahead.
  Result<at::Tensor> open_value_shard(int unit);
  void close_value_shard(int unit, const at::Tensor& shard, bool changed);
  void expect_value_shard(int unit);
  bool values_elsewhere() const { return file_ != nullptr || values_on_host_; }
  // The same without open and close, where they are on the device anyway.
  const at::Tensor& value_shard(int unit) const { return units_[static_cast<std::size_t>(unit)].value_shard; }
  const at::Tensor& gradient_shard(int unit) const { return units_[static_cast<std::size_t>(unit)].gradient_shard; }
  // Flat, whole units. In stage 3 values have no memory unless they are held (give_values). In stages 2 and 3 gradients
  // are undefined outside of backward.
  const at::Tensor& values(int unit) const { return units_[static_cast<std::size_t>(unit)].values; }
  const at::Tensor& gradients(int unit) const { return units_[static_cast<std::size_t>(unit)].gradients; }
  // The part of a unit's flat tensor that belongs to an entry, in its shape.
  static at::Tensor view(const at::Tensor& unit, const FlatEntry& entry);

  // Stage 3: the unit's values from now on lie in this buffer, and all views of them see it; an undefined tensor takes
  // the memory away.
  void give_values(int unit, const at::Tensor& buffer);

  void zero_gradients();
  // Makes the flat gradients hold what backward left in the parameter's .grad, whatever tensor that is. Idempotent in
  // stages 0 and 1.
  void collect_gradient(const FlatEntry& entry);
  // Stages 2 and 3: entries of the unit that got no gradient count as zero; and the end of the unit's buffer.
  void zero_missing(int unit, const std::vector<bool>& arrived);
  at::Tensor take_gradients(int unit);

  // A unit's whole tensors by parameter, put together from all ranks' shards: `shard` is this rank's of any flat tensor
  // cut like the unit. With one shard they are views of it.
  Result<std::map<std::string, at::Tensor>> gather(const std::string& name, int unit, const at::Tensor& shard) const;
  // The units' values (stages 1 and 2), after shards have changed. Frozen ones change only when somebody sets them.
  Result<void> gather_values(bool frozen_too = false);

 private:
  struct Unit {
    at::Tensor values, gradients, value_shard, gradient_shard;
  };

  FlatParameters() = default;
  Result<void> make_value_file(const std::string& folder);
  void open_gradients(int unit);

  int zero_ = 0;
  DataGroups groups_;
  at::TensorOptions value_options_, gradient_options_;
  ShardMap map_;
  std::vector<FlatEntry> entries_;
  std::vector<Unit> units_;
  at::Tensor all_gradients_;  // stages 0 and 1
  bool values_on_host_ = false;
  at::Tensor pages_;  // of the file that are in memory
  std::unique_ptr<PagedFile> file_;
};

}  // namespace yoke
