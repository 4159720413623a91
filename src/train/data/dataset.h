// The data of a run: from the globs of the run spec to tokens.
//
// A file named *.bin is a token file (token_file.h), any other is text. Files are joined in the order of the list, the
// matches of one pattern sorted by bytes, a file that several patterns match at its first place.
//
// Text is tokenised once, into a token file in the cache folder (data.cache, else $XDG_CACHE_HOME/yoke/tokens, else
// ~/.cache/yoke/tokens; token_cache.h). Several ranks may do this at once.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "core/spec/run_spec.h"
#include "train/data/tokens.h"

namespace yoke {

struct Dataset {
  Tokens train;                      // at least one sequence and a token
  std::optional<Tokens> validation;  // the same; nothing if none is asked for
  std::string description;           // one line: "1,204 text files, 18.2M tokens (bytes), 1% for validation"
  std::vector<std::string> notes;    // what a person should know: "... was damaged and has been made again"
};

// Without a list of its own, validation is the last share of the train tokens; the cut is at a multiple of the
// sequence, so that the train part keeps its sequences whatever the share. A share too small for one sequence gives
// none, with a note.
Result<Dataset> open_dataset(const DataSpec& spec);

}  // namespace yoke
