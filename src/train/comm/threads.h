// Ranks as threads of one process: collectives through shared memory of the process itself.
//
// Sums are made in rank order, so results do not depend on timing. Ranks that start different collectives under the
// same number get an error that names both.
#pragma once

#include <memory>
#include <vector>

#include "core/base/units.h"
#include "train/comm/communicator.h"

namespace yoke {

// One communicator for each rank of a new group, to be handed to its thread. A rank that drops its communicator early
// counts as gone: the others' collectives fail instead of waiting for the timeout.
std::vector<std::unique_ptr<Communicator>> thread_group(const std::string& group, int size, Seconds timeout);

}  // namespace yoke
