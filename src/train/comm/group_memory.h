// What the ranks of a group on one host write for each other: the layout of the memory that they share.
//
// Every word has one writer (the bell and `asleep` aside). Numbers only grow, so a rank that dies at any moment leaves
// nothing half-changed that others would have to repair.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "train/comm/communicator.h"

namespace yoke {

inline constexpr std::int64_t post_window = 64;         // collectives that a rank may have under way
inline constexpr std::int64_t payload_bytes = 2048;     // small tensors travel in the announcement
inline constexpr std::int64_t staging_bytes = 1 << 20;  // for each rank, in two halves
inline constexpr int max_segments = 1024;

// Where others find a tensor.
struct Place {
  std::int64_t segment = -1;  // -1: they cannot reach it
  std::uint64_t offset = 0;   // in the segment; between threads the address itself
};

// What a rank announces when it starts a collective.
struct Post {
  Collective::Kind kind;
  ReduceOp op;
  at::ScalarType type;
  int root;
  std::int64_t input_numel, output_numel;
  Place input;
  std::array<char, 64> name;
  alignas(64) std::array<std::byte, payload_bytes> payload;
};

struct alignas(64) Counter {
  std::atomic<std::int64_t> value{0};
};

struct Segment {
  std::atomic<std::int64_t> bytes{0};  // written last
  std::atomic<int> fd{-1};
};

struct RankBlock {
  Counter posted;                  // collectives announced
  Counter done;                    // collectives whose own share is done
  Counter staged, reduced, taken;  // pieces in the staging area: written, combined, read by this rank
  alignas(64) std::atomic<std::uint32_t> bell{0};
  std::atomic<std::uint32_t> asleep{0};
  std::atomic<bool> left{false};  // dropped its communicator
  // In the block of the outermost group, by the numbers that people know: for whose sake it gave up (perhaps a rank of
  // another host), and who it waits for.
  std::atomic<int> blamed{-1}, waits_for{-1};
  std::atomic<pid_t> pid{0};
  std::array<Segment, max_segments> segments;
  std::array<Post, post_window> posts;
  alignas(64) std::array<std::byte, staging_bytes> staging;
};

// The blocks of `size` ranks, one after the other.
inline std::size_t group_bytes(int size) { return static_cast<std::size_t>(size) * sizeof(RankBlock); }

}  // namespace yoke
