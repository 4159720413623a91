// The cache folder of token files: text is tokenised once, token files are checked once.
//
//   <hash>.bin       tokens of texts; the hash is of the format, the tokeniser's fingerprint, and each text's absolute
//                    path, size and modification time, so a changed text makes a new file and old ones are never wrong
//   <hash>.lock      held with flock by whoever makes the file beside it; the others wait, and a killed one lets go
//   <hash>.checked   says that a token file, by path, size and modification time, has been read whole and found good;
//                    holds its vocabulary
//
// Everything in the folder may be deleted at any time between runs. A folder on a network file system must have flock
// (NFS has) if ranks of several nodes share it.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "train/data/token_file.h"
#include "train/data/tokenizer.h"

namespace yoke {

struct CheckedFile {
  std::shared_ptr<const TokenFile> file;
  std::uint64_t vocab = 0;  // of its header, or the smallest that holds every token
};

class TokenCache {
 public:
  explicit TokenCache(std::string folder) : folder_(std::move(folder)) {}

  // A token file that anybody made; the cache folder need not be writable.
  Result<CheckedFile> open(const std::string& path) const;

  // The tokens of texts, one after the other. All of them are held in memory while the file is made. A damaged file is
  // made again, with a note.
  Result<CheckedFile> tokenise(std::span<const std::string> texts, const Tokenizer& tokenizer,
                               std::vector<std::string>& notes) const;

 private:
  std::string folder_;
};

}  // namespace yoke
