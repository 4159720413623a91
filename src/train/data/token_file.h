// Token files: what training reads, made once from text and then mapped into memory.
//
// Layout, little-endian:
//    0  "YOKETOKN"          16  u64 count of tokens      32  u64 xxh3-64 of the payload
//    8  u32 version, 1      24  u64 vocab                40  24 zero bytes
//   12  u32 bytes a token: 1, 2 or 4                     64  payload: count tokens
//
// Two other kinds are read too: llm.c's (256 int32 of which the first is 20240520 with uint16 tokens or 20240801 with
// uint32, the third the count) and, where no known header is, bare uint16 tokens as nanoGPT writes them. Neither knows
// its vocabulary or has a checksum.
//
// open() reads the header and holds the size against it; check() reads the payload. Whoever meets a file for the first
// time must call check() before read() is trusted; src/train/data/dataset.h does so once for each version of a file.
// The file must not be made shorter while it is open (replacing it by rename is fine).
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/base/result.h"
#include "os/file.h"

namespace yoke {

class TokenFile {
 public:
  static Result<TokenFile> open(const std::string& path);
  // Over bytes that the caller keeps alive; `name` is for messages.
  static Result<TokenFile> over(std::span<const std::byte> bytes, const std::string& name);

  std::uint64_t size() const { return payload_.size() / static_cast<std::uint64_t>(width_); }
  const std::string& name() const { return name_; }
  // Of the header; nothing when there is none that says it.
  std::optional<std::uint64_t> vocab() const { return vocab_; }

  // Verifies the checksum and finds any token outside of the vocabulary; the vocabulary, or without one in the header
  // the smallest that holds every token. Reads the payload once, at about the speed of memory.
  Result<std::uint64_t> check() const;

  // Tokens [first, first + out.size()).
  void read(std::uint64_t first, std::span<std::int64_t> out) const;

 private:
  TokenFile() = default;
  std::string name_;
  std::optional<MappedFile> file_;
  std::span<const std::byte> payload_;
  int width_ = 2;  // bytes a token
  std::optional<std::uint64_t> vocab_, checksum_;
};

// Gathers tokens in memory, as few bytes each as the vocabulary allows, and writes them as a token file.
class TokenWriter {
 public:
  explicit TokenWriter(std::uint64_t vocab);
  void append(std::span<const std::uint32_t> tokens);  // each below vocab
  std::uint64_t size() const { return payload_.size() / static_cast<std::uint64_t>(width_); }
  Result<void> write(const std::string& path) const;  // atomically

 private:
  std::uint64_t vocab_;
  int width_;
  std::vector<std::byte> payload_;
};

}  // namespace yoke
