// Collectives through shared memory: between ranks that are threads of one process, or processes of one host.
//
// No thread works in the background. Starting a collective puts down what this rank has to give; then, and whenever the
// rank starts or waits for something, it does its own share of every collective whose other ranks are there. For an
// all_reduce that share is the reduction of one n-th of the tensor. Each rank moves the textbook volume.
//
// Tensors that the others can reach (any tensor between threads; between processes those of shared_empty()) are read
// and written where they lie; others go through a small staging area, piece by piece; small ones travel with the
// announcement.
//
// Sums are made in rank order, in fp32 for 16-bit types, so results depend neither on timing nor on whether ranks are
// threads or processes. Ranks that start different collectives under the same number get an error that names both. A
// rank that has ended, in whatever way, fails the others' collectives within a fraction of a second; nothing is left
// behind, since the memory has no name.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "core/base/units.h"
#include "train/comm/communicator.h"

namespace yoke {

// One communicator for each rank of a new group, to be handed to its thread. A rank that drops its communicator early
// counts as ended.
std::vector<std::unique_ptr<Communicator>> thread_group(const std::string& group, int size, Seconds timeout);

// Gives every rank's text to every rank, in rank order.
using Exchange = std::function<Result<std::vector<std::string>>(const std::string& mine)>;

// This process's communicator in a group of processes; every rank calls it. `numbers` are the ranks as people know
// them: errors name these. Null on every rank when they cannot share memory (several hosts, or containers that do not
// see each other's processes).
Result<std::unique_ptr<Communicator>> process_group(const std::string& group, int rank, const std::vector<int>& numbers,
                                                    Seconds timeout, const Exchange& exchange);

}  // namespace yoke
