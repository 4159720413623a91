#include "train/loop/run.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <torch/version.h>
#include <unistd.h>

#include <chrono>
#include <fstream>
#include <thread>

#include "core/base/text.h"
#include "core/parallel/choose_layout.h"
#include "os/clock.h"
#include "os/file.h"
#include "os/memory_limit.h"
#include "train/comm/memory.h"
#include "train/data/dataset.h"
#include "train/loop/state.h"
#include "train/loop/trainer.h"

namespace yoke {
namespace {

// Seconds since this process started, from the kernel's own stamp.
double process_age() {
  std::ifstream stat("/proc/self/stat"), uptime("/proc/uptime");
  std::string text((std::istreambuf_iterator<char>(stat)), {});
  double up = 0;
  if (!(uptime >> up) || text.rfind(')') == std::string::npos) return 0;
  std::istringstream rest(text.substr(text.rfind(')') + 2));
  std::string field;
  for (int i = 3; i <= 22; ++i) rest >> field;  // field 22: start time in clock ticks since boot
  return up - std::stod(field) / static_cast<double>(sysconf(_SC_CLK_TCK));
}

std::string host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

// The attempt's own number, drawn by rank 0.
Result<std::string> agree_on_attempt(const RankJob& job, Communicator& communicator) {
  at::Tensor drawn = at::full({1}, unix_ns(), at::TensorOptions().dtype(at::kLong).device(job.device));
  YOKE_TRY(WorkPtr work, communicator.broadcast("attempt", drawn));
  YOKE_TRY_VOID(work->wait());
  return fmt::format("{}-{}", job.world.attempt, drawn.item<std::int64_t>());
}

class RankRun {
 public:
  RankRun(const RankJob& job, Communicator& communicator, EventLog& log)
      : job_(job), spec_(job.spec), communicator_(communicator), log_(log) {}

  Result<RunOutcome> run() {
    YOKE_TRY(Dataset data, open_dataset(spec_.data));
    YOKE_TRY_VOID(warn(data.notes));
    if (static_cast<std::int64_t>(data.train.vocab()) > spec_.model.shape.vocab)
      return fail(ErrorKind::usage,
                  fmt::format("the data have {} different tokens, but model.vocab is {}", data.train.vocab(),
                              spec_.model.shape.vocab),
                  "raise model.vocab, or use the tokenizer that belongs to the model");
    YOKE_TRY(trainer_, Trainer::make(spec_, communicator_, job_.device, parameter_type(spec_.train.precision)));
    YOKE_TRY(std::int64_t first_step, initial_state());
    YOKE_TRY(std::string attempt, agree_on_attempt(job_, communicator_));
    if (!job_.run_dir.empty())
      writer_ = std::make_unique<CheckpointWriter>(
          CheckpointWriter::Options{checkpoint_root(), communicator_.rank(), communicator_.size(),
                                    spec_.checkpoint.keep, spec_.train.collective_timeout, attempt});
    return steps(data, first_step);
  }

 private:
  std::string checkpoint_root() const { return job_.run_dir + "/checkpoints"; }

  // All ranks come to the same notes: one tells them.
  Result<void> warn(const std::vector<std::string>& notes) {
    if (communicator_.rank() != 0) return {};
    for (const std::string& note : notes) YOKE_TRY_VOID(log_.write(MessageEvent{false, note, ""}));
    return {};
  }

  // Weights from a checkpoint, a folder, or fresh; returns the step to begin with.
  Result<std::int64_t> initial_state() {
    start_.world_size = communicator_.size();
    for (const FlatEntry& entry : trainer_->flat().entries()) start_.parameters += entry.place.numel;
    start_.device = job_.device.str();
    start_.host = host_name();
    start_.pid = getpid();
    start_.attempt = job_.world.attempt;
    start_.versions = {{"libtorch", TORCH_VERSION}};

    // The run's own checkpoints go before what it began with: a restart, or --resume, must not lose them.
    std::optional<CheckpointReader> checkpoint;
    const std::string& resume = spec_.checkpoint.resume;
    if (resume != "none" || job_.world.attempt > 0) {
      if (!job_.run_dir.empty() && exists(checkpoint_root())) {
        std::vector<std::string> notes;
        YOKE_TRY(checkpoint, newest_complete(checkpoint_root(), notes));
        YOKE_TRY_VOID(warn(notes));
        if (!checkpoint && !notes.empty())
          return fail(ErrorKind::failed,
                      fmt::format("no checkpoint in {} can be used; {}", checkpoint_root(), notes.front()),
                      "to start again from nothing, use another run folder or set checkpoint.resume to \"none\"");
      }
    }
    if (!checkpoint && resume != "none" && resume != "auto") {
      YOKE_TRY(checkpoint, CheckpointReader::open(resume, communicator_.rank() == 0));
    }
    if (checkpoint) {
      YOKE_TRY_VOID(load_checkpoint(*trainer_, *checkpoint));
      YOKE_TRY_VOID(agree_on_step(checkpoint->step()));
      start_.checkpoint = checkpoint->path();
      start_.first_step = checkpoint->step();
      return checkpoint->step();
    }
    if (!spec_.model.path.empty() && has_weights(spec_.model.path)) {
      YOKE_TRY_VOID(load_weights(*trainer_, spec_.model.path));
    } else {
      std::optional<Error> error;
      fresh_parameters(trainer_->model(), spec_.train.seed, [&](const std::string& name, const at::Tensor& values) {
        if (auto set = trainer_->set_parameter(name, values); !set && !error) error = set.error();
      });
      if (error) return tl::unexpected(*error);
      YOKE_TRY_VOID(trainer_->publish_parameters());
    }
    YOKE_TRY_VOID(agree_on_step(0));
    return 0;
  }

  static bool has_weights(const std::string& folder) {
    return exists(folder + "/model.safetensors") || exists(folder + "/model.safetensors.index.json");
  }

  // All ranks must go on from the same step: one that sees another newest checkpoint (a stale network file system)
  // would train nonsense.
  Result<void> agree_on_step(std::int64_t step) {
    at::Tensor range = at::tensor({step, -step}, at::kLong).to(job_.device);
    YOKE_TRY(WorkPtr work, communicator_.all_reduce("first step", range, ReduceOp::max));
    YOKE_TRY_VOID(work->wait());
    auto highest = range[0].item<std::int64_t>(), lowest = -range[1].item<std::int64_t>();
    if (highest != lowest)
      return fail(ErrorKind::failed,
                  fmt::format("ranks would go on from different steps: {} to {}; rank {} found {}", lowest, highest,
                              communicator_.rank(), step),
                  "do all ranks see the same run folder?");
    return {};
  }

  Result<RunOutcome> steps(const Dataset& data, std::int64_t first_step) {
    const TrainSpec& train = spec_.train;
    Sampling sampling{train.seed, spec_.data.order, spec_.data.sequence, train.global_batch, data.train.size()};
    BatchPrefetcher prefetcher(data.train, sampling,
                               {communicator_.rank(), communicator_.size(), first_step, train.steps});
    bool first = true;
    std::int64_t step = first_step;
    if (step >= train.steps) {
      YOKE_TRY_VOID(log_.write(start_));
      YOKE_TRY_VOID(
          warn({fmt::format("nothing to do: {} is at step {}, and train.steps is {}; to train on, start a "
                            "run with checkpoint.resume = that folder and a larger train.steps",
                            *start_.checkpoint, step, train.steps)}));
    }
    for (; step < train.steps; ++step) {
      auto began = std::chrono::steady_clock::now();
      if (first) {
        if (communicator_.rank() == 0) start_.startup_seconds = process_age();
        YOKE_TRY_VOID(log_.write(start_));
        first = false;
      }
      StepEvent event;
      reset_memory_peaks();
      std::int64_t sent_before = trainer_->sent_bytes();
      Batch batch = prefetcher.next();
      event.seconds.data = prefetcher.take_waited_seconds();
      bool stop = job_.stop_signal != nullptr && job_.stop_signal->load() != 0;
      YOKE_TRY(StepResult result, trainer_->step(step, batch, stop));
      prefetcher.recycle(std::move(batch));
      bool last = step + 1 == train.steps || result.stop;
      double waited = writer_ != nullptr ? writer_->waited_seconds() : 0;
      if (writer_ != nullptr && (last || (spec_.checkpoint.every > 0 && (step + 1) % spec_.checkpoint.every == 0)))
        YOKE_TRY_VOID(save(step + 1));
      if (writer_ != nullptr) event.seconds.checkpoint = writer_->waited_seconds() - waited;

      event.step = step;
      event.loss = result.loss;
      event.grad_norm = result.grad_norm;
      event.learning_rate = result.learning_rate;
      if (trainer_->loss_scaler()) event.loss_scale = result.loss_scale;
      event.tokens = result.tokens;
      event.seconds.forward = result.forward_seconds;
      event.seconds.backward = result.backward_seconds;
      event.seconds.optimizer = result.optimizer_seconds;
      event.seconds.communication_exposed = result.exposed_seconds;
      event.seconds.total = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
      event.tokens_per_second = static_cast<double>(result.tokens) / event.seconds.total;
      event.sent_bytes["data"] = trainer_->sent_bytes() - sent_before;
      fill_memory(event.memory);
      YOKE_TRY_VOID(log_.write(event));
      YOKE_TRY_VOID(report_checkpoints());
      skipped_ += result.skipped;
      bool overflow = result.skipped && result.loss_scale > LossScaler::least;  // a smaller scale may do
      if (!overflow && (!std::isfinite(result.loss) || !std::isfinite(result.grad_norm)))
        return fail(
            ErrorKind::failed,
            fmt::format("step {}: the loss is {} and the gradient norm {}", step, result.loss, result.grad_norm),
            "training has diverged: lower train.optimizer.lr, warm up longer, or set train.optimizer.clip");
      if (result.stop) return finish(step + 1, RunOutcome::stopped);
      if (train.validate_every > 0 && (step + 1) % train.validate_every == 0 && !last)
        YOKE_TRY_VOID(validate(data, step));
    }
    if (step > first_step) YOKE_TRY_VOID(validate(data, step - 1));
    return finish(step, RunOutcome::done);
  }

  Result<void> save(std::int64_t step) {
    YOKE_TRY(CheckpointJob job, make_checkpoint(*trainer_, spec_, step, communicator_.rank(), communicator_.size()));
    return writer_->submit(std::move(job));
  }

  static void fill_memory(MemoryBytes& memory) {
    MemoryCounts counts = memory_counts();
    auto peak = [&](MemoryPart part) { return counts.peak[static_cast<std::size_t>(part)]; };
    memory.peak_bytes = counts.peak_total;
    memory.parameters = peak(MemoryPart::parameters);
    memory.gradients = peak(MemoryPart::gradients);
    memory.optimizer = peak(MemoryPart::optimizer);
    memory.activations = peak(MemoryPart::activations);
    memory.communication = peak(MemoryPart::communication);
    memory.checkpoint = peak(MemoryPart::checkpoint);
  }

  Result<void> report_checkpoints() {
    if (writer_ == nullptr) return {};
    for (const FinishedCheckpoint& done : writer_->take_finished()) {
      YOKE_TRY_VOID(log_.write(CheckpointEvent{done.step, done.path, done.seconds, done.bytes}));
      if (!done.note.empty()) YOKE_TRY_VOID(log_.write(MessageEvent{false, done.note, ""}));
    }
    return {};
  }

  Result<void> validate(const Dataset& data, std::int64_t step) {
    if (!data.validation) return {};
    Sampling sampling{spec_.train.seed, DataOrder::sequential, spec_.data.sequence, 1, data.validation->size()};
    std::int64_t sequences = std::min<std::int64_t>(static_cast<std::int64_t>(sequence_count(sampling)),
                                                    validation_batches * spec_.train.global_batch);
    std::vector<Batch> batches;
    for (std::int64_t k = communicator_.rank(); k < sequences; k += communicator_.size())
      batches.push_back(make_batch(*data.validation, sampling, k, 0, 1));
    YOKE_TRY(auto result, trainer_->validate(batches));
    if (communicator_.rank() != 0) return {};
    return log_.write(ValidationEvent{step, result.first, result.second});
  }

  // Now and then a step is skipped; a quarter of them means that the scale does not fit.
  Result<void> warn_of_skipped(std::int64_t steps) {
    if (skipped_ == 0 || skipped_ * 4 < steps) return {};
    return warn(
        {fmt::format("{} of {} steps were skipped because their gradients overflowed in fp16{}; lower "
                     "train.loss_scale.initial, raise train.loss_scale.growth_interval, or train in bf16",
                     skipped_, steps, skipped_ == steps ? ": nothing was learned" : "")});
  }

  Result<RunOutcome> finish(std::int64_t steps_done, RunOutcome outcome) {
    YOKE_TRY_VOID(warn_of_skipped(steps_done - start_.first_step));
    if (writer_ != nullptr) {
      YOKE_TRY_VOID(writer_->finish());
      YOKE_TRY_VOID(report_checkpoints());
    }
    // Nobody leaves while others still need him: rank 0 hosts the store, and completes the checkpoint of all.
    YOKE_TRY_VOID(communicator_.barrier("end"));
    YOKE_TRY_VOID(log_.write(EndEvent{steps_done, outcome == RunOutcome::done ? "done" : "stopped"}));
    return outcome;
  }

  const RankJob& job_;
  const RunSpec& spec_;
  Communicator& communicator_;
  EventLog& log_;
  std::unique_ptr<Trainer> trainer_;
  std::unique_ptr<CheckpointWriter> writer_;
  StartEvent start_;
  std::int64_t skipped_ = 0;  // steps
};

std::int64_t threads_a_rank(const RunSpec& spec, const World& world) {
  if (spec.train.threads > 0) return spec.train.threads;
  return std::max<std::int64_t>(1, static_cast<std::int64_t>(std::thread::hardware_concurrency()) / world.local_size);
}

}  // namespace

Result<RunOutcome> run_rank(const RankJob& given, Communicator& communicator) {
  YOKE_TRY(Layout layout, choose_layout(given.spec, communicator.size()));
  RankJob job = given;
  job.spec.train.micro_batch = layout.micro_batch;
  if (job.spec.offload.path.empty()) job.spec.offload.path = job.run_dir;
  at::set_num_threads(static_cast<int>(threads_a_rank(job.spec, job.world)));
  YOKE_TRY(std::unique_ptr<EventLog> log, EventLog::open(job.run_dir, communicator.rank(), job.observer));
  Result<RunOutcome> outcome;
  try {
    outcome = RankRun(job, communicator, *log).run();
  } catch (const std::exception& e) {  // libtorch throws
    std::string text = e.what();
    auto refused = refusal(e);
    if (refused && job.predicted_bytes > 0)
      refused->what += fmt::format(", and the plan predicted {} for this rank besides the program itself",
                                   format_bytes(job.predicted_bytes));
    outcome = tl::unexpected(
        refused.value_or(Error{ErrorKind::failed, text.substr(0, text.find('\n')), "an error inside libtorch"}));
  }
  if (!outcome) {
    // The disk may be the problem, so what cannot be logged is not worth a second error.
    (void)log->write(MessageEvent{true, outcome.error().what, outcome.error().hint});
    (void)log->write(EndEvent{0, "failed"});
  }
  return outcome;
}

}  // namespace yoke
