// AdamW (Loshchilov and Hutter 2019) on this rank's shards, through libtorch's fused operation.
//
// The state (the moments, and for 16-bit parameters the fp32 master weights) is cut by the parameters' shard map. It
// lies with the device in flat tensors, or elsewhere: in host memory, where the update then runs (Ren et al. 2021,
// ZeRO-Offload, arXiv 2101.06840), or in a file, whose pages are read ahead and written behind while the update goes
// through them (Rajbhandari et al. 2021, ZeRO-Infinity, arXiv 2104.07857).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/spec/run_spec.h"
#include "os/paged_file.h"
#include "train/parallel/flat_parameters.h"

namespace yoke {

class AdamW {
 public:
  // What the update works on (the parameters themselves, or the fp32 master weights), and the moments, which frozen
  // units do not have.
  enum class Part { weights, exp_avg, exp_avg_sq };

  // Weight decay covers all parameters, or those with at least two dimensions (Decay::matrices). flat must outlive it.
  // folder: of the file. Errors: those of the file, kind environment.
  static Result<std::unique_ptr<AdamW>> make(FlatParameters& flat, const OptimizerSpec& spec,
                                             Offload where = Offload::none, const std::string& folder = "");
  AdamW(const AdamW&) = delete;
  AdamW& operator=(const AdamW&) = delete;

  // One update from the gradient shards times gradient_scale. The gradients are used up: their values are undefined
  // afterwards. The caller then gathers the values (FlatParameters::gather_values).
  Result<void> step(double learning_rate, double gradient_scale);

  // This rank's shard of a unit: the state itself, or a copy of what lies elsewhere. After a change of it: write(), and
  // after the last write of weights publish().
  Result<at::Tensor> read(Part part, int unit);
  Result<void> write(Part part, int unit, const at::Tensor& shard);
  // Copies the master weights into this rank's shards of the 16-bit parameters.
  Result<void> publish();

  std::int64_t steps() const;
  void set_steps(std::int64_t steps);

 private:
  // A range of the state, which lies flat unit after unit: all of it in memory, or a page of the file.
  struct Window {
    std::int64_t first = 0, numel = 0;
    at::Tensor weights, exp_avg, exp_avg_sq;

    at::Tensor part(Part which) const;
  };
  struct Run {  // of elements of one unit with the same decay
    int unit = -1;
    bool decay = false;
    std::int64_t first = 0, numel = 0;  // in the unit's shard
  };
  struct Lists {  // for the fused operation
    std::vector<at::Tensor> weights, gradients, exp_avg, exp_avg_sq, steps;
  };

  AdamW(FlatParameters& flat, const OptimizerSpec& spec) : flat_(flat), spec_(spec) {}
  void find_runs();
  Result<void> make_file(const std::string& folder);
  std::int64_t windows() const;
  Result<Window> open(std::int64_t window);
  void close(std::int64_t window, bool changed);
  // f(the window, the unit's shard of the values, where the two overlap in the window and in the shard, and how far)
  // for every unit.
  template <class F>
  Result<void> for_each_part(bool change_state, bool change_values, F f);
  // values, gradients: of the unit's shard, beginning at `from`.
  void add_run(const Run& run, const Window& window, const at::Tensor& values, const at::Tensor& gradients,
               std::int64_t from, Lists& lists) const;
  void update(Lists& lists, double weight_decay, double learning_rate, double gradient_scale);
  // The unit's weights are the values.
  bool in_place(int unit) const { return flat_.wide() || !flat_.gradient_shard(unit).defined(); }

  FlatParameters& flat_;
  OptimizerSpec spec_;
  at::TensorOptions options_;        // of the state
  std::vector<std::int64_t> first_;  // of each unit's shard in the state
  std::int64_t total_ = 0;
  std::vector<Run> runs_;
  at::Tensor steps_;
  Window all_;                            // in memory
  std::optional<Lists> decayed_, plain_;  // of all runs, when nothing ever moves
  at::Tensor pages_;                      // of the file that are in memory
  std::unique_ptr<PagedFile> file_;
};

// Sum of the squares of all gradient shards of this rank, accumulated in fp64.
double sum_of_squared_gradients(const FlatParameters& flat);

// min(1, clip / (norm + 1e-6)); 1 without clipping (clip 0).
double clip_factor(double norm, double clip);

// The rate of step s (from 0) of a run of `steps`: in warm-up lr (s + 1) / warmup, then the decay from lr down to
// min_lr at the last step.
double learning_rate(const OptimizerSpec& optimizer, const LrScheduleSpec& schedule, std::int64_t steps,
                     std::int64_t step);

}  // namespace yoke
