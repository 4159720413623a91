// A trainer's weights and optimizer state, to and from files.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "train/checkpoint/checkpoint_reader.h"
#include "train/checkpoint/checkpoint_writer.h"
#include "train/loop/trainer.h"

namespace yoke {

// This rank's share of a checkpoint after `step` steps: whole tensors, dealt so that every rank writes about as much.
// The weights are the fp32 (fp64) ones that the optimizer works on. Every rank calls it: shards are put together unit
// by unit.
Result<CheckpointJob> make_checkpoint(Trainer& trainer, const RunSpec& spec, std::int64_t step, int rank, int ranks);

// Weights, moments and step count; every tensor must be there in the right shape.
Result<void> load_checkpoint(Trainer& trainer, const CheckpointReader& reader);

// The weights of a Hugging Face folder. The head of a tied model may be there as well (it is the embedding), and known
// buffers of older files; anything else too much, and anything missing, is an error.
Result<void> load_weights(Trainer& trainer, const std::string& folder);

}  // namespace yoke
