// One optimiser step of a transformer on one rank: micro-batches forward and backward, gradients summed over the ranks
// meanwhile, the norm, clipping and AdamW. With ZeRO each rank keeps and updates its shards only.
//
// Loss and gradients are sums over the tokens that count, divided once by their number in the global batch. The
// backward pass divides by the number that is expected (all of them); what differs is put right when the update scales
// the gradients anyway.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/spec/run_spec.h"
#include "train/comm/communicator.h"
#include "train/data/batch.h"
#include "train/nn/transformer.h"
#include "train/optim/adamw.h"
#include "train/optim/loss_scaler.h"
#include "train/parallel/data_axis.h"
#include "train/parallel/data_parallel.h"
#include "train/parallel/flat_parameters.h"
#include "train/parallel/gather_on_use.h"

namespace yoke {

struct StepResult {
  double loss = 0;       // mean over the counted tokens of the global batch
  double grad_norm = 0;  // of that mean's gradient, before clipping
  double learning_rate = 0;
  std::int64_t tokens = 0;  // counted ones of the global batch
  bool stop = false;        // some rank asked to stop after this step
  double loss_scale = 1;    // with fp16
  bool skipped = false;     // gradients overflowed in fp16: nothing was updated
  double forward_seconds = 0, backward_seconds = 0, exposed_seconds = 0, optimizer_seconds = 0;
};

class Trainer {
 public:
  // The communicator spans the data axis and must outlive it. Parameters are uninitialised until set_parameter() or a
  // checkpoint fills them. `type` is that of the parameters: train.precision's, or fp64 to tell rounding from errors.
  static Result<std::unique_ptr<Trainer>> make(const RunSpec& spec, Communicator& communicator, at::Device device,
                                               at::ScalarType type);

  ~Trainer();

  // `values` is a CPU tensor of any floating dtype in the parameter's shape; each rank keeps its part.
  Result<void> set_parameter(const std::string& name, const at::Tensor& values);
  // After the last set_parameter, and whenever weights were written past the trainer: the model gets them. Every rank
  // calls it.
  Result<void> publish_parameters();

  // batch: this rank's rows of the step. `stop` is this rank's wish to stop, which all ranks learn in the result.
  Result<StepResult> step(std::int64_t step, const Batch& batch, bool stop);

  // The mean loss over the counted tokens of these batches, over all ranks; nothing is updated. Ranks may have
  // different numbers of batches.
  Result<std::pair<double, std::int64_t>> validate(const std::vector<Batch>& batches);

  Transformer& model() { return *model_; }
  FlatParameters& flat() { return *flat_; }
  AdamW& optimizer() { return *optimizer_; }
  std::optional<LossScaler>& loss_scaler() { return scaler_; }  // with fp16
  std::int64_t sent_bytes() const { return axis_->sent_bytes(); }

  // The gradients as the last step left them before clipping, by parameter; only with keep_gradients() set before
  // (tests).
  void keep_gradients() { keep_gradients_ = true; }
  const std::map<std::string, at::Tensor>& kept_gradients() const { return kept_gradients_; }
  // The weights that the optimizer works on, whole, by parameter (tests). Every rank calls it.
  Result<std::map<std::string, at::Tensor>> whole_weights();

 private:
  Trainer(const RunSpec& spec, Communicator& communicator, at::Device device)
      : spec_(spec), communicator_(communicator), device_(device) {}

  Result<double> sum_over_shards(double mine);
  Result<void> keep_gradients_of_step(double scale);

  RunSpec spec_;
  Communicator& communicator_;
  at::Device device_;
  std::shared_ptr<KeptInputs> kept_inputs_;  // with offloaded activations
  std::shared_ptr<Transformer> model_;
  std::unique_ptr<DataAxis> axis_;
  std::unique_ptr<FlatParameters> flat_;
  std::unique_ptr<DataParallel> parallel_;
  std::unique_ptr<GatherOnUse> gather_;  // ZeRO 3
  std::unique_ptr<AdamW> optimizer_;
  std::optional<LossScaler> scaler_;
  bool keep_gradients_ = false;
  std::map<std::string, at::Tensor> kept_gradients_;
};

at::ScalarType parameter_type(Precision precision);

}  // namespace yoke
