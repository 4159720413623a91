// What one rank needs in memory with data parallelism and ZeRO, by part, before anything runs.
//
// Model states, in bytes a parameter, over d ranks that hold the shards of one copy (ZeRO: Rajbhandari et al. 2020,
// arXiv 1910.02054):
//
//                         parameters   gradients   optimizer
//   fp32                      4            4           8       AdamW's two moments in fp32
//   bf16, fp16                2            4          12       the gradients are kept in fp32; fp32 master weights, two
//                                                              moments
//   divided by d from ZeRO    3            2           1       on
//
// which is the 16 and 18 bytes of Megatron-LM's user guide (distributed optimizer, replicated), and its 6 + 12/d. The
// 16-bit gradients of single parameters, which live from one hook to the next, are left out.
//
// Activations are what the forward pass keeps for the backward pass. For each token of a micro-batch a layer keeps, in
// elements of the precision (A = heads * head_dim; every k and v head is repeated for the query heads that share it):
//
//                         recompute none          selective               full
//   the layer's input       hidden                  hidden                  hidden
//   first norm's output     hidden
//   q, k, v, attention      4 A                     4 A
//   second norm's input     hidden                  hidden
//   second norm's output    hidden
//   llama: gate and up      2 ffn                   2 ffn
//          their product    ffn
//   gpt2:  up               ffn                     ffn
//          its GELU         ffn
//
// and, except with full, fp32 numbers: one for each head (logsumexp; Dao 2023, FlashAttention-2) and the norms'
// statistics (llama: two, gpt2: four). Added to all layers' share is the largest of what lives for a while: the loss
// (final norm's output and the logits, which are made in pieces of head_rows_at_once(); with more than one piece, the
// head's gradient), the widest layer's gradients (3 ffn, gpt2: 2 ffn), with full recomputation also one layer's share
// without it. The idea of the count is that of Korthikanti et al. 2022 (arXiv 2205.05198).
//
// Frozen parameters (train.freeze) have values alone. Activations are counted as if nothing were frozen.
//
// Checkpoint: a rank's copy of what it writes, 12 bytes a trainable parameter (fp32 weights, two moments), the
// element's size for a frozen one. The parameters are dealt whole to all ranks: a rank has its share of the bytes, or
// the largest parameter where that is more. The copy is written while the next step computes, beside activations; after
// the last step there are none.
//
// Offload to files leaves three pages in memory (core/parallel/offload_pages.h): of the optimizer's state, of the
// largest unit's shard, of the layers' inputs (and the one in use). A checkpoint's copy is in a file then, too. Offload
// to the host counts as if it were none, which it is on a CPU.
//
// Communication: without ZeRO gradients are reduced where they lie. In stages 2 and 3 the gradients of two units may be
// whole at a time; in stage 3 the values of three (in use, before it, ahead). A unit is a bucket in stage 2, a layer in
// stage 3.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/base/result.h"
#include "core/base/units.h"
#include "core/spec/layout.h"
#include "core/spec/run_spec.h"

namespace yoke {

struct MemoryPrediction {
  Bytes parameters, gradients, optimizer, activations, communication, checkpoint;
  bool checkpoint_in_training = false;  // else only after the last step
  // At the highest point.
  Bytes total() const {
    const Bytes passing = checkpoint_in_training ? activations + checkpoint : std::max(activations, checkpoint);
    return parameters + gradients + optimizer + communication + passing;
  }
};

struct StateBytes {
  double parameters = 0, gradients = 0, optimizer = 0;  // bytes a parameter
  double total() const { return parameters + gradients + optimizer; }
};

// By the table above.
StateBytes state_bytes(Precision precision, int zero, std::int64_t shards);
// As the ZeRO paper counts mixed precision: 2 for the parameters, 2 for the gradients, 12 for the optimizer.
StateBytes state_bytes_of_the_paper(int zero, std::int64_t shards);

// The spec's model, as `layout` spreads it. Kind usage: as freeze() (core/parallel/model_parameters.h).
Result<MemoryPrediction> predict_memory(const RunSpec& spec, const Layout& layout);

}  // namespace yoke
