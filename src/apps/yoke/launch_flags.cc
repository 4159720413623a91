#include "apps/yoke/launch_flags.h"

#include "core/base/text.h"

namespace yoke {

Result<int> resolve_ranks(const std::string& text, int cores, int gpus) {
  if (text == "auto") return gpus > 0 ? gpus : cores;
  if (text == "cpu") return cores;
  if (text == "gpu") {
    if (gpus > 0) return gpus;
    return fail(ErrorKind::environment, "--nproc-per-node gpu: this machine has no visible NVIDIA GPU",
                "use auto or cpu, or look at CUDA_VISIBLE_DEVICES");
  }
  auto number = parse_integer(text);
  constexpr int most = 4096;
  if (number && *number >= 1 && *number <= most) return static_cast<int>(*number);
  return fail(ErrorKind::usage, fmt::format("--nproc-per-node is {}, which is no number of ranks", text),
              fmt::format("give a number from 1 to {}, auto, cpu or gpu", most));
}

Result<void> check_nodes(const std::string& text) {
  if (text == "1" || text == "1:1") return {};
  return fail(ErrorKind::usage, fmt::format("--nnodes is {}, but yoke launch starts ranks on one node only", text),
              "use --nnodes 1");
}

Result<std::vector<int>> resolve_streams(const std::string& text, int ranks, const std::string& flag) {
  auto wrong = [&] {
    return fail(ErrorKind::usage, fmt::format("{} is {}", flag, text),
                "give 0 (none), 1 (stdout), 2 (stderr) or 3 (both), for all ranks or by local rank: 0:1,1:3");
  };
  auto streams = [](const std::string& word) {
    auto number = parse_integer(word);
    return number && *number >= 0 && *number <= 3 ? static_cast<int>(*number) : -1;
  };
  std::vector<int> result(static_cast<std::size_t>(ranks), 0);
  if (text.find(':') == std::string::npos) {
    if (streams(text) < 0) return wrong();
    std::fill(result.begin(), result.end(), streams(text));
    return result;
  }
  for (const std::string& entry : split(text, ',')) {
    std::vector<std::string> sides = split(entry, ':');
    if (sides.size() != 2 || streams(sides[1]) < 0) return wrong();
    auto rank = parse_integer(sides[0]);
    if (!rank || *rank < 0 || *rank >= ranks) return wrong();
    result[static_cast<std::size_t>(*rank)] = streams(sides[1]);
  }
  return result;
}

Result<std::vector<bool>> resolve_rank_filter(const std::string& text, int ranks) {
  std::vector<bool> shown(static_cast<std::size_t>(ranks), text.empty());
  if (text.empty()) return shown;
  for (const std::string& word : split(text, ',')) {
    auto rank = parse_integer(trim(word));
    if (!rank || *rank < 0 || *rank >= ranks) {
      return fail(ErrorKind::usage,
                  fmt::format("--local-ranks-filter is {}, but the ranks are 0 to {}", text, ranks - 1),
                  "give local ranks, as in 0,2");
    }
    shown[static_cast<std::size_t>(*rank)] = true;
  }
  return shown;
}

std::vector<std::string> rank_command(const Program& program, const std::string& python) {
  std::vector<std::string> words;
  if (program.module) {
    words = {python, "-m"};
  } else if (!program.direct && program.words.front().ends_with(".py")) {
    words = {python};
  }
  words.insert(words.end(), program.words.begin(), program.words.end());
  return words;
}

}  // namespace yoke
