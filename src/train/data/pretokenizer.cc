#include "train/data/pretokenizer.h"

#include <span>
#include <string>

namespace yoke {
namespace {

using Word = std::function<Result<void>(std::string_view)>;

std::size_t next_character(std::string_view text, std::size_t at) {
  do ++at;
  while (at < text.size() && (static_cast<unsigned char>(text[at]) & 0xc0) == 0x80);
  return at;
}

Result<void> run(std::string_view text, std::span<const CutStage> stages, const Word& word) {
  if (text.empty()) return {};
  if (stages.empty()) return word(text);
  const CutStage& stage = stages.front();
  const auto rest = stages.subspan(1);
  std::string with_space;
  if (stage.leading_space && text.front() != ' ') {
    with_space.append(" ").append(text);
    text = with_space;
  }
  if (!stage.cut) return run(text, rest, word);
  std::size_t done = 0;  // all before it has been given on
  for (std::size_t from = 0; from <= text.size();) {
    YOKE_TRY(const auto match, stage.cut->find(text, from));
    if (!match) break;
    YOKE_TRY_VOID(run(text.substr(done, match->begin - done), rest, word));
    YOKE_TRY_VOID(run(text.substr(match->begin, match->end - match->begin), rest, word));
    done = match->end;
    from = match->end > from ? match->end : next_character(text, from);
  }
  return run(text.substr(done), rest, word);
}

}  // namespace

Result<Regex> byte_level_regex() {
  return Regex::compile(R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)");
}

Result<void> cut_into_words(std::string_view text, const std::vector<CutStage>& stages, const Word& word) {
  while (!text.empty()) {
    const std::size_t valid = utf8_prefix(text);
    YOKE_TRY_VOID(run(text.substr(0, valid), stages, word));
    text.remove_prefix(valid);
    std::size_t invalid = 0;
    while (invalid < text.size() && utf8_prefix(text.substr(invalid)) == 0) ++invalid;
    if (invalid > 0) YOKE_TRY_VOID(word(text.substr(0, invalid)));
    text.remove_prefix(invalid);
  }
  return {};
}

}  // namespace yoke
