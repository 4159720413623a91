#include "train/data/added_tokens.h"

#include <algorithm>
#include <utility>

namespace yoke {

void AddedTokens::add(std::string content, std::uint32_t token) {
  auto& entries = by_first_byte_[static_cast<unsigned char>(content.front())];
  if (entries.empty()) first_bytes_ += content.front();
  const auto place =
      std::find_if(entries.begin(), entries.end(), [&](const Entry& e) { return e.content.size() < content.size(); });
  entries.insert(place, {std::move(content), token});
}

std::optional<AddedTokens::Match> AddedTokens::find(std::string_view text, std::size_t from) const {
  if (first_bytes_.empty()) return std::nullopt;
  for (auto at = text.find_first_of(first_bytes_, from); at != text.npos; at = text.find_first_of(first_bytes_, at + 1))
    for (const Entry& entry : by_first_byte_[static_cast<unsigned char>(text[at])])
      if (text.substr(at).starts_with(entry.content)) return Match{at, at + entry.content.size(), entry.token};
  return std::nullopt;
}

}  // namespace yoke
