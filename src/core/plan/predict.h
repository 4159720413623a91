// What one rank needs in memory with data parallelism, by part, before anything runs.
//
// Model states, in bytes a parameter (every rank holds all of them):
//
//                         parameters   gradients   optimizer
//   fp32                      4            4           8       AdamW's two moments in fp32
//   bf16, fp16                2            4          12       the gradients are kept in fp32; fp32 master weights, two
//   moments
//
// which is the 16 and 18 bytes of Megatron-LM's user guide (distributed optimizer, replicated). The 16-bit gradients of
// single parameters, which live from one hook to the next, are left out.
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
// Communication: gradients are reduced where they lie, so a rank needs at most a second copy of the bucket that is
// under way.
#pragma once

#include <cstdint>

#include "core/base/units.h"
#include "core/spec/model.h"
#include "core/spec/run_spec.h"

namespace yoke {

struct MemoryPrediction {
  Bytes parameters, gradients, optimizer, activations, communication;
  Bytes total() const { return parameters + gradients + optimizer + activations + communication; }
};

MemoryPrediction predict_memory(const Model& model, Precision precision, Recompute recompute, std::int64_t micro_batch,
                                std::int64_t sequence, std::int64_t data_ranks,
                                double bucket_mib = TrainSpec().bucket_mib);

}  // namespace yoke
