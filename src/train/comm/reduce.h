// Sums (maxima, minima) over the same range of several ranks' tensors, in rank order, so that the result does not
// depend on timing: what a collective in shared memory computes.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <span>

#include "train/comm/communicator.h"

namespace yoke {

// Whether reduce() knows the type: the floating types, int32, int64, uint8 and bool.
bool can_reduce(at::ScalarType type);

// Each of `outputs` gets inputs[0] op inputs[1] op ..., element by element. 16-bit types are combined in fp32 and
// rounded once. An output may be one of the inputs; otherwise they must not overlap. Uses this rank's threads.
void reduce(ReduceOp op, at::ScalarType type, std::span<void* const> outputs, std::span<const void* const> inputs,
            std::int64_t count);

// memcpy on this rank's threads.
void copy_bytes(void* to, const void* from, std::size_t bytes);

}  // namespace yoke
