#include "train/data/tokens.h"

#include <algorithm>
#include <utility>

namespace yoke {

Tokens::Tokens(std::vector<std::shared_ptr<const TokenFile>> files, std::uint64_t vocab) : vocab_(vocab) {
  for (auto& file : files) {
    if (file->size() == 0) continue;
    size_ += file->size();
    pieces_.push_back({size_, std::move(file)});
  }
}

void Tokens::read(std::uint64_t first, std::span<std::int64_t> out) const {
  YOKE_CHECK(first <= size_ && out.size() <= size_ - first, "tokens {} to {} of {}", first, first + out.size(), size_);
  first += first_;
  auto piece = std::upper_bound(pieces_.begin(), pieces_.end(), first,
                                [](std::uint64_t at, const Piece& p) { return at < p.end; });
  while (!out.empty()) {
    const std::size_t here = std::min<std::uint64_t>(out.size(), piece->end - first);
    piece->file->read(first - (piece->end - piece->file->size()), out.first(here));
    out = out.subspan(here);
    first += here;
    ++piece;
  }
}

Tokens Tokens::part(std::uint64_t first, std::uint64_t count) const {
  YOKE_CHECK(first <= size_ && count <= size_ - first, "tokens {} to {} of {}", first, first + count, size_);
  Tokens result = *this;
  result.first_ += first;
  result.size_ = count;
  return result;
}

}  // namespace yoke
