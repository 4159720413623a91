// Byte-level byte-pair encoding: the model half of GPT-2's, Llama 3's and their relatives' tokenisers.
//
// A word's bytes are written in an alphabet of 256 printable characters (GPT-2's), one symbol each. Then, as long as
// there is one, the pair of neighbours with the lowest rank among the merges, of equal ones the leftmost, becomes one.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/result.h"

namespace yoke {

// Lets unordered_map<std::string, ...> be asked with a string_view.
struct TextHash {
  using is_transparent = void;
  std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
template <class T>
using TextMap = std::unordered_map<std::string, T, TextHash, std::equal_to<>>;

class Bpe {
 public:
  // Merges in the order of their ranks. whole_words: a word that is a token is that token, whatever the merges would
  // make of it ("ignore_merges").
  static Result<Bpe> make(TextMap<std::uint32_t> vocab, const std::vector<std::pair<std::string, std::string>>& merges,
                          bool whole_words);

  // Appends the tokens of a word. A byte for which the vocabulary has no symbol is an error.
  Result<void> encode(std::string_view word, std::vector<std::uint32_t>& out) const;

  const TextMap<std::uint32_t>& vocab() const { return vocab_; }

 private:
  struct Merge {
    std::uint32_t rank = 0, merged = 0;
  };
  Bpe() = default;
  TextMap<std::uint32_t> vocab_;
  std::unordered_map<std::uint64_t, Merge> merges_;  // by left token << 32 | right token
  std::array<std::optional<std::uint32_t>, 256> bytes_;
  bool whole_words_ = false;
};

}  // namespace yoke
