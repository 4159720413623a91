#include "train/data/token_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <deque>
#include <random>

#include "train/data/tokens.h"

namespace yoke {
namespace {

using ::testing::HasSubstr;

// A file's bytes, written by hand.
template <class T>
void put(std::string& bytes, T value) {
  bytes.append(reinterpret_cast<const char*>(&value), sizeof value);
}

std::string by_hand(std::uint32_t version, std::uint32_t width, std::uint64_t count, std::uint64_t vocab,
                    std::uint64_t checksum, const std::string& payload) {
  std::string bytes = "YOKETOKN";
  put(bytes, version);
  put(bytes, width);
  put(bytes, count);
  put(bytes, vocab);
  put(bytes, checksum);
  bytes.resize(64);
  return bytes + payload;
}

// A file over a copy of the bytes, which stays.
Result<TokenFile> over(const std::string& bytes) {
  static std::deque<std::string> kept;
  kept.push_back(bytes);
  return TokenFile::over(std::as_bytes(std::span(kept.back())), "t.bin");
}

std::vector<std::int64_t> all_of(const TokenFile& file) {
  std::vector<std::int64_t> tokens(file.size());
  file.read(0, tokens);
  return tokens;
}

std::string write(const TemporaryFolder& folder, const std::vector<std::uint32_t>& tokens, std::uint64_t vocab) {
  TokenWriter writer(vocab);
  writer.append(tokens);
  const std::string path = folder / "tokens.bin";
  EXPECT_TRUE(writer.write(path));
  return path;
}

TEST(TokenFile, WhatIsWrittenIsRead) {
  const TemporaryFolder folder;
  std::mt19937_64 random(1);
  for (const std::uint64_t vocab : {1ULL, 255ULL, 256ULL, 257ULL, 65536ULL, 65537ULL, 1ULL << 32}) {
    std::vector<std::uint32_t> tokens(random() % 1000);
    for (auto& token : tokens) token = static_cast<std::uint32_t>(random() % vocab);
    tokens.push_back(static_cast<std::uint32_t>(vocab - 1));
    const auto file = TokenFile::open(write(folder, tokens, vocab));
    ASSERT_TRUE(file) << file.error().what;
    EXPECT_EQ(file->vocab(), vocab);
    EXPECT_EQ(file->check().value(), vocab);
    EXPECT_EQ(all_of(*file), std::vector<std::int64_t>(tokens.begin(), tokens.end()));
  }
}

TEST(TokenFile, TakesTheFewestBytes) {
  const TemporaryFolder folder;
  const std::vector<std::uint32_t> tokens(10, 1);
  for (const auto& [vocab, bytes] :
       std::vector<std::pair<std::uint64_t, std::uint64_t>>{{256, 10}, {257, 20}, {65536, 20}, {65537, 40}})
    EXPECT_EQ(file_size(write(folder, tokens, vocab)).value(), 64 + bytes);
}

// xxh3-64 of "abcdef" and below of nothing, from Python's xxhash.
constexpr std::uint64_t abcdef_hash = 0xda87bd32d3c47db6;

TEST(TokenFile, TheLayoutIsWhatTheHeaderSays) {
  const auto file = over(by_hand(1, 2, 3, 30000, abcdef_hash, "abcdef"));
  ASSERT_TRUE(file) << file.error().what;
  EXPECT_EQ(file->check().value(), 30000U);
  EXPECT_EQ(all_of(*file), (std::vector<std::int64_t>{'a' + 'b' * 256, 'c' + 'd' * 256, 'e' + 'f' * 256}));
  const auto empty = over(by_hand(1, 4, 0, 5, 0x2d06800538d394c2, ""));
  ASSERT_TRUE(empty);
  EXPECT_EQ(empty->check().value(), 5U);

  const TemporaryFolder folder;
  const std::string path = write(folder, {0x6261, 0x6463, 0x6665}, 30000);
  EXPECT_EQ(read_file(path).value(), by_hand(1, 2, 3, 30000, abcdef_hash, "abcdef"));
}

TEST(TokenFile, EveryCutIsAnErrorThatNamesTheSizes) {
  const std::string whole = by_hand(1, 2, 3, 30000, 0, "abcdef");
  for (std::size_t size = 8; size < whole.size(); ++size) {
    const auto file = over(whole.substr(0, size));
    ASSERT_FALSE(file) << size;
    EXPECT_THAT(file.error().what, HasSubstr(fmt::format("t.bin has {} bytes", size)));
    EXPECT_THAT(file.error().what, HasSubstr(size < 64 ? "less than its header" : "which is 70 bytes"));
  }
  EXPECT_FALSE(over(whole + "x"));
}

TEST(TokenFile, HeadersThatMakeNoSenseAreErrors) {
  const auto what = [](const std::string& bytes) { return over(bytes).error().what; };
  EXPECT_THAT(what(by_hand(2, 2, 3, 30000, 0, "abcdef")), HasSubstr("version 2"));
  EXPECT_THAT(what(by_hand(1, 3, 2, 30000, 0, "abcdef")), HasSubstr("3 bytes a token"));
  EXPECT_THAT(what(by_hand(1, 2, 3, 65537, 0, "abcdef")), HasSubstr("65537"));
  EXPECT_THAT(what(by_hand(1, 2, 3, 0, 0, "abcdef")), HasSubstr("vocabulary of 0"));
  // Times 2 it is 6 in 64 bits.
  EXPECT_THAT(what(by_hand(1, 2, (std::uint64_t{1} << 63) + 3, 30000, 0, "abcdef")), HasSubstr("9223372036854775811"));
}

TEST(TokenFile, CheckFindsDamageAndForeignTokens) {
  EXPECT_THAT(over(by_hand(1, 2, 3, 30000, abcdef_hash ^ 1, "abcdef"))->check().error().what, HasSubstr("checksum"));
  EXPECT_THAT(over(by_hand(1, 2, 3, 30000, abcdef_hash, "abcdeg"))->check().error().what, HasSubstr("checksum"));
  EXPECT_THAT(over(by_hand(1, 2, 3, 0x6665, abcdef_hash, "abcdef"))->check().error().what,
              HasSubstr("token 26213, outside of its vocabulary of 26213"));
}

TEST(TokenFile, BareFilesAre16Bit) {
  const auto file = over(std::string("\x01\x00\xff\xff\x02\x01", 6));
  ASSERT_TRUE(file);
  EXPECT_EQ(all_of(*file), (std::vector<std::int64_t>{1, 65535, 258}));
  EXPECT_FALSE(file->vocab());
  EXPECT_EQ(file->check().value(), 65536U);
  EXPECT_THAT(over("abc").error().what, HasSubstr("3 bytes"));
  EXPECT_EQ(over("")->size(), 0U);
}

TEST(TokenFile, LlmcFilesAreRead) {
  const auto llmc = [](std::int32_t magic, std::int32_t version, std::int32_t count, const std::string& payload) {
    std::string bytes;
    put(bytes, magic);
    put(bytes, version);
    put(bytes, count);
    bytes.resize(1024);
    return bytes + payload;
  };
  const std::string payload("\x01\x00\x02\x00\x03\x00\x04\x00", 8);
  EXPECT_EQ(all_of(*over(llmc(20240520, 1, 4, payload))), (std::vector<std::int64_t>{1, 2, 3, 4}));
  EXPECT_EQ(all_of(*over(llmc(20240801, 7, 2, payload))), (std::vector<std::int64_t>{0x20001, 0x40003}));
  EXPECT_THAT(over(llmc(20240520, 1, 5, payload)).error().what, HasSubstr("1032 bytes"));
  EXPECT_THAT(over(llmc(20240520, 2, 4, payload)).error().what, HasSubstr("version 2"));
}

TEST(TokenFile, AMissingFileIsNamed) {
  EXPECT_THAT(TokenFile::open("/nowhere/x.bin").error().what, HasSubstr("/nowhere/x.bin"));
}

TEST(Tokens, AreOneRunOverFiles) {
  const std::vector<std::string> payloads = {std::string("\1\0\2\0", 4), "", std::string("\3\0", 2),
                                             std::string("\4\0\5\0\6\0", 6)};
  std::vector<std::shared_ptr<const TokenFile>> files;
  for (const auto& payload : payloads) files.push_back(std::make_shared<const TokenFile>(over(payload).value()));
  const Tokens tokens(std::move(files), 7);
  EXPECT_EQ(tokens.size(), 6U);
  EXPECT_EQ(tokens.vocab(), 7U);
  const auto read = [](const Tokens& run, std::uint64_t first, std::size_t count) {
    std::vector<std::int64_t> out(count);
    run.read(first, out);
    return out;
  };
  for (std::size_t first = 0; first <= 6; ++first)
    for (std::size_t count = 0; first + count <= 6; ++count) {
      std::vector<std::int64_t> expected;
      for (std::size_t i = 0; i < count; ++i) expected.push_back(static_cast<std::int64_t>(first + i + 1));
      EXPECT_EQ(read(tokens, first, count), expected);
      EXPECT_EQ(read(tokens.part(first, count), 0, count), expected);
      EXPECT_EQ(tokens.part(first, count).size(), count);
    }
  EXPECT_EQ(read(tokens.part(1, 5).part(2, 3), 1, 2), (std::vector<std::int64_t>{5, 6}));
  EXPECT_DEATH(read(tokens, 3, 4), "tokens 3 to 7 of 6");
  EXPECT_DEATH(read(tokens.part(1, 2), 1, 2), "tokens 1 to 3 of 2");
}

}  // namespace
}  // namespace yoke
