// A run of tokens over one or more token files, or a part of it. Cheap to copy: copies share the files. Any number of
// threads may read.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "train/data/token_file.h"

namespace yoke {

class Tokens {
 public:
  Tokens() = default;
  // The files in order, which have been checked; `vocab` holds every token of them.
  Tokens(std::vector<std::shared_ptr<const TokenFile>> files, std::uint64_t vocab);

  std::uint64_t size() const { return size_; }
  std::uint64_t vocab() const { return vocab_; }

  // Tokens [first, first + out.size()) of this run.
  void read(std::uint64_t first, std::span<std::int64_t> out) const;

  Tokens part(std::uint64_t first, std::uint64_t count) const;

 private:
  struct Piece {
    std::uint64_t end = 0;  // of this file in the run of all files
    std::shared_ptr<const TokenFile> file;
  };
  std::vector<Piece> pieces_;
  std::uint64_t first_ = 0, size_ = 0;  // in the run of all files
  std::uint64_t vocab_ = 0;
};

}  // namespace yoke
