// torchrun's flags, as far as their values need thought.
#pragma once

#include <string>
#include <vector>

#include "core/base/result.h"

namespace yoke {

// --nproc-per-node: a number, "cpu" (one rank a core), "gpu", or "auto" (GPUs if there are any, cores otherwise).
Result<int> resolve_ranks(const std::string& text, int cores, int gpus);

// --nnodes: only "1" and "1:1" so far.
Result<void> check_nodes(const std::string& text);

// --redirects and --tee: 0 none, 1 stdout, 2 stderr, 3 both, for all ranks ("3") or by local rank ("0:1,2:3"). By rank.
Result<std::vector<int>> resolve_streams(const std::string& text, int ranks, const std::string& flag);

// --local-ranks-filter: "0,2"; empty: all. By rank: shown on the terminal or not.
Result<std::vector<bool>> resolve_rank_filter(const std::string& text, int ranks);

struct Program {
  std::vector<std::string> words;
  bool module = false;  // -m
  bool direct = false;  // --no-python, or it came after "--"
};
// What a rank executes: python for scripts and modules, anything else by itself.
std::vector<std::string> rank_command(const Program& program, const std::string& python);

}  // namespace yoke
