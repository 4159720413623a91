// Any bytes as a token file: an error, or tokens that can all be read and, after a good check, lie in the vocabulary.
#include <cstdlib>
#include <vector>

#include "train/data/token_file.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto file = yoke::TokenFile::over(std::as_bytes(std::span(data, size)), "input");
  if (!file) return 0;
  if (file->size() > size) std::abort();
  std::vector<std::int64_t> tokens(file->size());
  file->read(0, tokens);
  const auto vocab = file->check();
  if (!vocab) return 0;
  for (const std::int64_t token : tokens)
    if (token < 0 || static_cast<std::uint64_t>(token) >= *vocab) std::abort();
  return 0;
}
