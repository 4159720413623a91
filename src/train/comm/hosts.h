// Collectives between ranks of several hosts, or of one that cannot share memory: through Gloo or NCCL.
//
// Where every host has the same number of ranks, more than one, and they share memory, a collective takes three steps:
// in the memory of each host, between ranks with the same place on their hosts, and again in the memory of each host.
// So an all_reduce is a reduce_scatter, an all_reduce of one piece, and an all_gather, and of a host's data only one
// copy crosses the network. Otherwise the middle step is the whole collective.
//
// A step is started when the one before has ended, which is seen whenever the rank starts or waits for something. Sums
// of 16-bit types are rounded on each host, then as Gloo does it. Results have the same bits on all ranks.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/base/units.h"
#include "train/comm/communicator.h"
#include "train/comm/progress_board.h"

namespace yoke {

// A group over the network of `size` ranks, of which this is number `rank`; every one of them calls it with the same
// key, which nobody else uses.
using Network = std::function<Result<std::unique_ptr<Communicator>>(const std::string& key, const std::string& name,
                                                                    int rank, int size)>;

// What all groups of a world have in common.
struct HostsWorld {
  std::vector<int> hosts;  // by rank of the world: the number of its host
  Network network;
  std::shared_ptr<ProgressBoard> board;
  Seconds timeout = Seconds(0);
};

// A group of these ranks of the world, ascending, this one (`ranks[rank]`) among them. local: this host's ranks of the
// group, or null when ranks cannot share memory; all ranks have one, or none has.
Result<std::unique_ptr<Communicator>> hosts_group(const std::string& name, int rank, std::vector<int> ranks,
                                                  std::unique_ptr<Communicator> local, const std::string& key,
                                                  std::shared_ptr<const HostsWorld> world);

}  // namespace yoke
