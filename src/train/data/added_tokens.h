// Tokens that are found in a text as they are, before anything is cut: "<|endoftext|>" and its like.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace yoke {

class AddedTokens {
 public:
  struct Match {
    std::size_t begin = 0, end = 0;
    std::uint32_t token = 0;
  };

  void add(std::string content, std::uint32_t token);  // content is not empty
  // The first one at or after `from`; where several begin at one place, the longest.
  std::optional<Match> find(std::string_view text, std::size_t from) const;

 private:
  struct Entry {
    std::string content;
    std::uint32_t token = 0;
  };
  std::array<std::vector<Entry>, 256> by_first_byte_;  // each longest first
  std::string first_bytes_;
};

}  // namespace yoke
