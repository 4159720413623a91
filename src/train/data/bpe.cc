#include "train/data/bpe.h"

#include <functional>
#include <queue>

namespace yoke {
namespace {

// The printable characters of Latin-1 stand for themselves, the other bytes for U+0100 onwards.
std::array<std::string, 256> make_alphabet() {
  std::array<std::string, 256> alphabet;
  unsigned next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
    const unsigned character = printable ? byte : next++;
    if (character >= 0x80) alphabet[byte].push_back(static_cast<char>(0xc0 | character >> 6));
    alphabet[byte].push_back(static_cast<char>(character < 0x80 ? character : 0x80 | (character & 0x3f)));
  }
  return alphabet;
}

const std::array<std::string, 256>& alphabet() {
  static const std::array<std::string, 256> made = make_alphabet();
  return made;
}

constexpr std::uint64_t pair_key(std::uint32_t left, std::uint32_t right) { return std::uint64_t{left} << 32 | right; }

constexpr std::size_t none = static_cast<std::size_t>(-1);

struct Symbol {  // of a word, in a list; one that was merged into its left neighbour is dead
  std::uint32_t token = 0;
  bool dead = false;
  std::size_t before = none, after = none;
};

struct Candidate {  // a pair that may be merged
  std::uint32_t rank = 0, merged = 0;
  std::size_t left = 0;
  bool operator>(const Candidate& o) const { return rank != o.rank ? rank > o.rank : left > o.left; }
};

}  // namespace

Result<Bpe> Bpe::make(TextMap<std::uint32_t> vocab, const std::vector<std::pair<std::string, std::string>>& merges,
                      bool whole_words) {
  Bpe bpe;
  bpe.vocab_ = std::move(vocab);
  bpe.whole_words_ = whole_words;
  for (std::size_t byte = 0; byte < 256; ++byte) {
    const auto found = bpe.vocab_.find(alphabet()[byte]);
    if (found != bpe.vocab_.end()) bpe.bytes_[byte] = found->second;
  }
  bpe.merges_.reserve(merges.size());
  std::uint32_t rank = 0;
  for (const auto& [left, right] : merges) {
    std::array<std::uint32_t, 3> tokens{};
    const std::array<std::string, 3> texts = {left, right, left + right};
    for (std::size_t i = 0; i < texts.size(); ++i) {
      const auto found = bpe.vocab_.find(texts[i]);
      if (found == bpe.vocab_.end())
        return fail(ErrorKind::usage,
                    fmt::format("merge {} (\"{} {}\") needs the token \"{}\", which the vocabulary lacks", rank, left,
                                right, texts[i]));
      tokens[i] = found->second;
    }
    bpe.merges_[pair_key(tokens[0], tokens[1])] = {rank++, tokens[2]};
  }
  return bpe;
}

Result<void> Bpe::encode(std::string_view word, std::vector<std::uint32_t>& out) const {
  if (whole_words_) {
    std::string text;
    for (const char c : word) text += alphabet()[static_cast<unsigned char>(c)];
    const auto found = vocab_.find(text);
    if (found != vocab_.end()) {
      out.push_back(found->second);
      return {};
    }
  }

  std::vector<Symbol> symbols(word.size());
  for (std::size_t i = 0; i < word.size(); ++i) {
    const auto byte = static_cast<unsigned char>(word[i]);
    if (!bytes_[byte])
      return fail(ErrorKind::usage, fmt::format("the tokeniser's vocabulary has no token for the byte 0x{:02x}", byte),
                  "take a tokeniser with all 256 bytes in its vocabulary");
    symbols[i] = {*bytes_[byte], false, i == 0 ? none : i - 1, i + 1 == word.size() ? none : i + 1};
  }

  // Every pair waits in a queue by rank; one that has changed since it was put there is dropped when it comes up.
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto offer = [&](std::size_t left) {
    if (left == none || symbols[left].after == none) return;
    const auto merge = merges_.find(pair_key(symbols[left].token, symbols[symbols[left].after].token));
    if (merge != merges_.end()) queue.push({merge->second.rank, merge->second.merged, left});
  };
  for (std::size_t i = 0; i < symbols.size(); ++i) offer(i);
  while (!queue.empty()) {
    const Candidate best = queue.top();
    queue.pop();
    Symbol& left = symbols[best.left];
    if (left.dead || left.after == none) continue;
    Symbol& right = symbols[left.after];
    const auto merge = merges_.find(pair_key(left.token, right.token));
    if (merge == merges_.end() || merge->second.rank != best.rank) continue;
    left.token = best.merged;
    left.after = right.after;
    right.dead = true;
    if (left.after != none) symbols[left.after].before = best.left;
    offer(left.before);
    offer(best.left);
  }
  for (std::size_t i = symbols.empty() ? none : 0; i != none; i = symbols[i].after) out.push_back(symbols[i].token);
  return {};
}

}  // namespace yoke
