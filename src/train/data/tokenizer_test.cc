#include "train/data/tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

#include "os/file.h"
#include "train/data/regex.h"
#include "train/data/tokenizer_json.h"

namespace yoke {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

const std::string golden = YOKE_SOURCE_DIR "/tests/golden/tokenizers/";

std::vector<std::uint32_t> encoded(const Tokenizer& tokenizer, std::string_view text) {
  std::vector<std::uint32_t> tokens;
  const auto done = tokenizer.encode(text, tokens);
  EXPECT_TRUE(done) << done.error().what;
  return tokens;
}

json golden_json(const std::string& name) { return json::parse(read_file(golden + name).value()); }

std::string error_of(const json& content) {
  const auto tokenizer = tokenizer_from_json(content.dump(), "t.json");
  return tokenizer ? "" : tokenizer.error().what;
}

class Golden : public ::testing::TestWithParam<std::string> {};

// The ids that the Python packages tokenizers and sentencepiece gave (tests/golden/make_tokenizers.py).
TEST_P(Golden, SameIdsAsTheReference) {
  const json cases = golden_json("cases.json");
  const json& expected = cases.at(GetParam());
  const auto tokenizer = open_tokenizer(golden + GetParam());
  ASSERT_TRUE(tokenizer) << tokenizer.error().what;
  EXPECT_EQ((*tokenizer)->vocab(), expected.at("vocab").get<std::uint64_t>());
  for (int pass = 0; pass < 2; ++pass) {  // the second one finds its words in the cache
    for (std::size_t i = 0; i < cases.at("texts").size(); ++i) {
      const auto text = cases.at("texts")[i].get<std::string>();
      if (expected.at("ids")[i].is_null()) continue;
      EXPECT_EQ(encoded(**tokenizer, text), expected.at("ids")[i].get<std::vector<std::uint32_t>>()) << text;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Tokenizer, Golden,
                         ::testing::Values("gpt2.json", "llama3.json", "nfc-digits.json", "sentencepiece.model"),
                         [](const auto& test) {
                           std::string name = test.param.substr(0, test.param.find('.'));
                           std::erase(name, '-');
                           return name;
                         });

TEST(Tokenizer, BytesAreTheirOwnTokens) {
  std::string all;
  std::vector<std::uint32_t> expected = {7};
  for (unsigned byte = 0; byte < 256; ++byte) {
    all += static_cast<char>(byte);
    expected.push_back(byte);
  }
  const auto tokenizer = open_tokenizer("bytes").value();
  std::vector<std::uint32_t> tokens = {7};  // encode() appends
  ASSERT_TRUE(tokenizer->encode(all, tokens));
  EXPECT_EQ(tokens, expected);
  EXPECT_EQ(tokenizer->vocab(), 256U);
}

TEST(Tokenizer, FingerprintsTellContentsApart) {
  EXPECT_NE(open_tokenizer(golden + "gpt2.json").value()->fingerprint(),
            open_tokenizer(golden + "llama3.json").value()->fingerprint());
  EXPECT_EQ(open_tokenizer(golden + "gpt2.json").value()->fingerprint(),
            open_tokenizer(golden + "gpt2.json").value()->fingerprint());
}

TEST(Tokenizer, UnknownNamesAndMissingFilesAreErrors) {
  EXPECT_THAT(open_tokenizer("gpt2").error().what, HasSubstr("\"gpt2\""));
  EXPECT_THAT(open_tokenizer("/nowhere/tokenizer.json").error().what, HasSubstr("/nowhere/tokenizer.json"));
}

// What is not UTF-8 keeps its bytes, and the text around it is cut as if it ended and began there.
TEST(Tokenizer, BytesThatAreNotUtf8AreKept) {
  const auto tokenizer = open_tokenizer(golden + "gpt2.json").value();
  auto expected = encoded(*tokenizer, "return ");
  const auto ff = golden_json("gpt2.json")["model"]["vocab"]["\xc3\xbf"].get<std::uint32_t>();  // its alphabet's 0xff
  expected.insert(expected.end(), {ff, ff});
  const auto rest = encoded(*tokenizer, " self");
  expected.insert(expected.end(), rest.begin(), rest.end());
  EXPECT_EQ(encoded(*tokenizer, "return \xff\xff self"), expected);
}

TEST(Tokenizer, Utf8IsCheckedAsTheStandardSays) {
  EXPECT_EQ(utf8_prefix("plain and long enough for a word"), 32U);
  EXPECT_EQ(utf8_prefix("\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80"), 9U);
  EXPECT_EQ(utf8_prefix("12345678\xf4\x8f\xbf\xbf"), 12U);
  for (const char* wrong : {"\x80", "\xc0\x80", "\xc1\xbf", "\xe0\x9f\xbf", "\xed\xa0\x80", "\xf0\x8f\xbf\xbf",
                            "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xe2\x82", "\xe2\x82z", "\xff"})
    EXPECT_EQ(utf8_prefix(std::string("ab") + wrong), 2U);
}

TEST(Tokenizer, TextThatNfcCouldChangeIsAnError) {
  const auto tokenizer = open_tokenizer(golden + "nfc-digits.json").value();
  std::vector<std::uint32_t> tokens;
  for (const char* text : {"a\xcc\x81", "ok \xff then \xe2\x84\xab", "\xe1\x84\x80\xe1\x85\xa1"}) {
    const auto done = tokenizer->encode(text, tokens);
    ASSERT_FALSE(done) << text;
    EXPECT_THAT(done.error().what, HasSubstr("NFC"));
  }
  EXPECT_TRUE(tokenizer->encode("\xc3\xa9\xe4\xbd\xa0\xf0\x9f\x98\x80 caf\xc3\xa9 \xff", tokens));
}

TEST(Tokenizer, ALongWordOfOneLetterIsNotSlow) {
  const auto tokenizer = open_tokenizer(golden + "gpt2.json").value();
  EXPECT_GT(encoded(*tokenizer, std::string(1 << 20, 'a')).size(), 1000U);
}

TEST(Tokenizer, ThreadsMayShareOne) {
  const auto tokenizer = open_tokenizer(golden + "llama3.json").value();
  const std::string text = read_file(__FILE__).value();
  const auto expected = encoded(*open_tokenizer(golden + "llama3.json").value(), text);
  std::atomic<int> same = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) threads.emplace_back([&] { same += encoded(*tokenizer, text) == expected; });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(same, 3);
}

TEST(TokenizerJson, WhatIsNotSupportedIsNamed) {
  const json good = golden_json("llama3.json");
  ASSERT_EQ(error_of(good), "");
  const auto changed = [&](const std::string& pointer, const json& value) {
    json content = good;
    content[json::json_pointer(pointer)] = value;
    return error_of(content);
  };
  EXPECT_THAT(changed("/model/type", "Unigram"), HasSubstr("Unigram"));
  EXPECT_THAT(changed("/model/type", "WordPiece"), HasSubstr("WordPiece"));
  EXPECT_THAT(changed("/model/dropout", 0.1), HasSubstr("model.dropout is 0.1"));
  EXPECT_THAT(changed("/model/byte_fallback", true), HasSubstr("byte_fallback"));
  EXPECT_THAT(changed("/model/end_of_word_suffix", "</w>"), HasSubstr("end_of_word_suffix"));
  EXPECT_THAT(changed("/model/continuing_subword_prefix", "##"), HasSubstr("continuing_subword_prefix"));
  EXPECT_THAT(changed("/model/new_thing", 1), HasSubstr("new_thing"));
  EXPECT_THAT(changed("/normalizer", {{"type", "Lowercase"}}), HasSubstr("Lowercase"));
  EXPECT_THAT(changed("/normalizer", {{"type", "Sequence"}, {"normalizers", {{{"type", "NFKC"}}}}}), HasSubstr("NFKC"));
  EXPECT_THAT(changed("/truncation", {{"max_length", 5}}), HasSubstr("truncation"));
  EXPECT_THAT(changed("/padding", {{"length", 5}}), HasSubstr("padding"));
  EXPECT_THAT(changed("/pre_tokenizer", nullptr), HasSubstr("pre_tokenizer"));
  EXPECT_THAT(changed("/pre_tokenizer", {{"type", "Whitespace"}}), HasSubstr("Whitespace"));
  EXPECT_THAT(changed("/pre_tokenizer/pretokenizers/0/behavior", "Removed"), HasSubstr("Removed"));
  EXPECT_THAT(changed("/pre_tokenizer/pretokenizers/0/invert", true), HasSubstr("invert"));
  EXPECT_THAT(changed("/pre_tokenizer/pretokenizers/0/pattern", {{"String", "x"}}), HasSubstr("String"));
  EXPECT_THAT(changed("/pre_tokenizer/pretokenizers/0/pattern/Regex", "(a"), HasSubstr("(a"));
  EXPECT_THAT(changed("/pre_tokenizer/pretokenizers/0/pattern/Regex", "[a&&b]"), HasSubstr("&&"));
  EXPECT_THAT(changed("/pre_tokenizer/pretokenizers/1/type", "Metaspace"), HasSubstr("Metaspace"));
  EXPECT_THAT(changed("/post_processor", {{"type", "Odd"}}), HasSubstr("Odd"));
  EXPECT_THAT(changed("/added_tokens/0/lstrip", true), HasSubstr("added token \"<|end|>\".lstrip"));
  EXPECT_THAT(changed("/added_tokens/0/single_word", true), HasSubstr("single_word"));
  EXPECT_THAT(changed("/added_tokens/0/content", ""), HasSubstr("empty"));
  EXPECT_THAT(changed("/added_tokens/0/content", "!"), HasSubstr("has id 502, and 0 in the vocabulary"));
  EXPECT_THAT(changed("/something", 1), HasSubstr("something"));
}

TEST(TokenizerJson, DamagedFilesAreErrors) {
  const json good = golden_json("llama3.json");
  const auto changed = [&](const std::string& pointer, const json& value) {
    json content = good;
    content[json::json_pointer(pointer)] = value;
    return error_of(content);
  };
  EXPECT_THAT(changed("/model/vocab/!", -1), HasSubstr("\"!\" is -1"));
  EXPECT_THAT(changed("/model/vocab/!", std::uint64_t{1} << 32), HasSubstr("4294967296"));
  EXPECT_THAT(changed("/model/vocab", 3), HasSubstr("t.json"));
  EXPECT_THAT(changed("/model/merges/0", "abc"), HasSubstr("merge 0"));
  EXPECT_THAT(changed("/model/merges/0", 5), HasSubstr("t.json"));
  EXPECT_THAT(changed("/model/merges/2", {"q", "qqq"}), HasSubstr("\"qqq\""));
  EXPECT_THAT(error_of(json::array()), HasSubstr("not an object"));
  const std::string text = good.dump();
  for (std::size_t length = 0; length < text.size(); length += 97)
    EXPECT_FALSE(tokenizer_from_json(std::string_view(text).substr(0, length), "t.json"));
}

TEST(TokenizerJson, AByteWithoutATokenIsAnErrorWhenItComesUp) {
  json content = golden_json("gpt2.json");
  content["model"]["vocab"].erase("~");
  content["model"]["merges"] = json::array();
  const auto tokenizer = tokenizer_from_json(content.dump(), "t.json").value();
  std::vector<std::uint32_t> tokens;
  EXPECT_TRUE(tokenizer->encode("home", tokens));
  EXPECT_THAT(tokenizer->encode("~/home", tokens).error().what, HasSubstr("0x7e"));
}

TEST(SentencePiece, DamagedModelsAreErrors) {
  const std::string model = read_file(golden + "sentencepiece.model").value();
  EXPECT_THAT(sentencepiece_tokenizer("", "empty.model").error().what, HasSubstr("empty.model"));
  EXPECT_FALSE(sentencepiece_tokenizer(std::string(1000, 'x'), "x.model"));
  // A cut at the border of two fields leaves a smaller model; any other cut is an error. None may crash.
  int errors = 0;
  for (std::size_t length = 1; length < model.size(); length += 41)
    errors += !sentencepiece_tokenizer(model.substr(0, length), "cut.model");
  EXPECT_GT(errors, 100);
}

}  // namespace
}  // namespace yoke
