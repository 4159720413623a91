// The bytes before the first zero and after it, as two inputs:
// - a tokenizer.json, and a text: an error, or tokens within the vocabulary;
// - the pattern of a good tokenizer.json, and a text: the tokens, written out again, are the text.
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "train/data/regex.h"
#include "train/data/tokenizer_json.h"

namespace {

using nlohmann::json;

std::string utf8(unsigned character) {
  if (character < 0x80) return {static_cast<char>(character)};
  return {static_cast<char>(0xc0 | character >> 6), static_cast<char>(0x80 | (character & 0x3f))};
}

void any_file(std::string_view content, std::string_view text) {
  const auto tokenizer = yoke::tokenizer_from_json(content, "input");
  if (!tokenizer) return;
  std::vector<std::uint32_t> tokens;
  (void)(*tokenizer)->encode(text, tokens);
  for (const std::uint32_t token : tokens)
    if (token >= (*tokenizer)->vocab()) std::abort();
}

void any_pattern(std::string_view pattern, std::string_view text) {
  if (yoke::utf8_prefix(pattern) != pattern.size()) return;  // JSON holds nothing else
  json vocab = json::object();
  std::vector<std::string> meaning;  // by token
  const auto add = [&](const std::string& written, const std::string& bytes) {
    vocab[written] = meaning.size();
    meaning.push_back(bytes);
  };
  unsigned next = 0x100;
  for (unsigned byte = 0; byte < 256; ++byte) {
    const bool itself = (byte > 0x20 && byte < 0x7f) || (byte > 0xa0 && byte != 0xad);
    add(utf8(itself ? byte : next++), {static_cast<char>(byte)});
  }
  for (const char* merged : {"ab", "aba", "abab", "aa", "aaaa"}) add(merged, merged);
  const json merges = {{"a", "b"}, {"ab", "a"}, {"ab", "ab"}, {"a", "a"}, {"aa", "aa"}};
  const json cut = {{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}, {"invert", false}};
  const json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", pattern.size() % 2 == 0}};
  const json file = {{"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {cut, bytes}}}},
                     {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};

  const auto tokenizer = yoke::tokenizer_from_json(file.dump(), "input");
  if (!tokenizer) return;
  std::vector<std::uint32_t> tokens;
  if (!(*tokenizer)->encode(text, tokens)) return;
  std::string again;
  for (const std::uint32_t token : tokens) again += meaning.at(token);
  if (again != text) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const std::string_view first = input.substr(0, input.find('\0'));
  const std::string_view second = input.substr(std::min(first.size() + 1, input.size()));
  any_file(first, second);
  any_pattern(first, second);
  return 0;
}
