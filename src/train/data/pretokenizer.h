// Cuts a text into the words that byte-pair encoding works on: the pre_tokenizer half of a tokenizer.json.
#pragma once

#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "core/base/result.h"
#include "train/data/regex.h"

namespace yoke {

struct CutStage {
  bool leading_space = false;  // first put a space before each piece that does not begin with one
  std::optional<Regex> cut;    // each match is a piece, and each gap between matches
};

// GPT-2's pattern, which ByteLevel cuts by unless it is told not to.
Result<Regex> byte_level_regex();

// Gives the pieces that are left after all stages to `word`, in order, none empty. Each run of bytes that are not UTF-8
// is a piece of its own, so that nothing is lost and nothing else is changed.
Result<void> cut_into_words(std::string_view text, const std::vector<CutStage>& stages,
                            const std::function<Result<void>(std::string_view)>& word);

}  // namespace yoke
