#include "train/data/batch.h"

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

namespace yoke {
namespace {

void fill(const Tokens& tokens, const Sampling& sampling, std::int64_t step, RowRange range, Batch& batch) {
  const auto length = static_cast<std::size_t>(sampling.sequence);
  batch.rows = range.rows;
  batch.sequence = sampling.sequence;
  batch.valid = range.rows * sampling.sequence;
  batch.inputs.resize(static_cast<std::size_t>(batch.valid));
  batch.targets.resize(static_cast<std::size_t>(batch.valid));
  for (std::int64_t row = 0; row < range.rows; ++row) {
    const std::uint64_t start = sequence_index(sampling, step, range.first + row) * length;
    const auto inputs = std::span(batch.inputs).subspan(static_cast<std::size_t>(row) * length, length);
    const auto targets = std::span(batch.targets).subspan(static_cast<std::size_t>(row) * length, length);
    tokens.read(start, inputs);
    std::copy(inputs.begin() + 1, inputs.end(), targets.begin());
    tokens.read(start + length, targets.last(1));
  }
}

}  // namespace

Batch make_batch(const Tokens& tokens, const Sampling& sampling, std::int64_t step, std::int64_t first_row,
                 std::int64_t rows) {
  YOKE_CHECK(sampling.tokens == tokens.size(), "sampling of {} tokens over {}", sampling.tokens, tokens.size());
  Batch batch;
  fill(tokens, sampling, step, {first_row, rows}, batch);
  return batch;
}

struct BatchPrefetcher::State {
  const Tokens tokens;
  const Sampling sampling;
  const PrefetchSpec spec;
  std::int64_t next_step;
  double waited = 0;

  std::mutex mutex;
  std::condition_variable changed;
  std::vector<Batch> ring;  // of spec.depth; the batches that are ready begin at `head`
  std::size_t head = 0, ready = 0;
  std::vector<Batch> spare;
  bool stop = false;
  std::thread thread;

  void run() {
    const RowRange range = rank_rows(sampling, spec.rank, spec.ranks);
    for (std::int64_t step = spec.first_step; step < spec.last_step; ++step) {
      Batch batch;
      {
        std::unique_lock lock(mutex);
        changed.wait(lock, [&] { return stop || ready < spec.depth; });
        if (stop) return;
        if (!spare.empty()) {
          batch = std::move(spare.back());
          spare.pop_back();
        }
      }
      fill(tokens, sampling, step, range, batch);
      {
        std::lock_guard lock(mutex);
        ring[(head + ready++) % spec.depth] = std::move(batch);
      }
      changed.notify_all();
    }
  }
};

BatchPrefetcher::BatchPrefetcher(Tokens tokens, const Sampling& sampling, const PrefetchSpec& spec) {
  YOKE_CHECK(sampling.tokens == tokens.size(), "sampling of {} tokens over {}", sampling.tokens, tokens.size());
  YOKE_CHECK(spec.depth > 0, "a prefetcher of depth 0");
  state_.reset(
      new State{.tokens = std::move(tokens), .sampling = sampling, .spec = spec, .next_step = spec.first_step});
  state_->ring.resize(spec.depth);
  state_->spare.reserve(spec.depth + 1);
  state_->thread = std::thread([state = state_.get()] { state->run(); });
}

BatchPrefetcher::~BatchPrefetcher() {
  {
    std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->changed.notify_all();
  state_->thread.join();
}

Batch BatchPrefetcher::next() {
  YOKE_CHECK(state_->next_step < state_->spec.last_step, "a batch after the last step, {}", state_->spec.last_step);
  ++state_->next_step;
  Batch batch;
  {
    std::unique_lock lock(state_->mutex);
    if (state_->ready == 0) {
      const auto start = std::chrono::steady_clock::now();
      state_->changed.wait(lock, [&] { return state_->ready > 0; });
      state_->waited += std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    }
    batch = std::move(state_->ring[state_->head]);
    state_->head = (state_->head + 1) % state_->spec.depth;
    --state_->ready;
  }
  state_->changed.notify_all();
  return batch;
}

void BatchPrefetcher::recycle(Batch batch) {
  std::lock_guard lock(state_->mutex);
  // No more than can be in use at once.
  if (state_->spare.size() <= state_->spec.depth) state_->spare.push_back(std::move(batch));
}

double BatchPrefetcher::take_waited_seconds() { return std::exchange(state_->waited, 0.0); }

}  // namespace yoke
