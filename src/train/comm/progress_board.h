// How far the ranks of a world have come, as each tells the others through the store: what a rank whose collective does
// not finish looks at, to name those that it waits for.
//
// A thread of its own says twice a second that the rank lives and which collectives it has started; starting one costs
// a lock. Others are read only after a failure. A rank that gave up has said for whose sake, so that all name the same
// one. Ranks are numbered as in the world.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <vector>

namespace yoke {

class ProgressBoard {
 public:
  // hosts_store: the store ends with this process. It then waits a little at its end, if this rank gave up, for others
  // to read why.
  ProgressBoard(c10::intrusive_ptr<c10d::Store> store, int rank, int size, bool hosts_store);
  ~ProgressBoard();
  ProgressBoard(const ProgressBoard&) = delete;
  ProgressBoard& operator=(const ProgressBoard&) = delete;

  // A collective, the `number`-th of a group of these ranks.
  struct Place {
    std::string group;
    std::vector<int> members;
    std::int64_t number = 0;
  };

  void started(const std::string& group, std::int64_t number);
  // What this rank waits for now; nothing when it goes on.
  void waits_for(std::optional<Place> place);

  struct Absent {
    std::vector<int> ranks;
    std::string text;  // "absent ranks: 1, 3 (no longer answers)", or why that is not known
  };
  // Who is to blame that this collective failed; others learn that this rank gave up for the first of them. Takes some
  // seconds when a rank no longer answers, and never waits for one that does not.
  Absent absent(const Place& place);

 private:
  struct State;
  std::shared_ptr<State> state_;  // the thread's too: the store may never answer it
};

}  // namespace yoke
