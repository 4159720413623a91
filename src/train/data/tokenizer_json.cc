#include "train/data/tokenizer_json.h"

#include <algorithm>
#include <array>
#include <functional>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "core/base/text.h"
#include "train/data/added_tokens.h"
#include "train/data/bpe.h"
#include "train/data/hash.h"
#include "train/data/pretokenizer.h"

namespace yoke {
namespace {

using nlohmann::json;

// Everything that NFC could change, alone or with its neighbours, and a little more: marks, the parts of Korean
// syllables, and the characters that decompose for good.
constexpr const char* maybe_not_nfc =
    R"((?![\x{FE00}-\x{FE0F}])[\p{M}\x{374}\x{37E}\x{387}\x{958}-\x{95F}\x{9DC}-\x{9DF}\x{A33}\x{A36}\x{A59}-\x{A5E})"
    R"(\x{B5C}\x{B5D}\x{F43}-\x{F5C}\x{F69}\x{1161}-\x{1175}\x{11A8}-\x{11C2}\x{1F71}-\x{1F7D}\x{1FBB}-\x{1FFD})"
    R"(\x{2000}\x{2001}\x{2126}\x{212A}\x{212B}\x{2329}\x{232A}\x{2ADC}\x{F900}-\x{FAD9}\x{FB1D}-\x{FB4E})"
    R"(\x{1D15E}-\x{1D164}\x{1D1BB}-\x{1D1C0}\x{2F800}-\x{2FA1D}])";

struct Parts {
  AddedTokens raw, normalized;  // searched for in this order
  std::vector<CutStage> stages;
  std::optional<Regex> not_nfc;  // if there is NFC: what it could change
  std::optional<Bpe> bpe;
  std::uint64_t vocab = 0;
};

class JsonTokenizer : public Tokenizer {
 public:
  JsonTokenizer(Parts parts, std::string fingerprint)
      : parts_(std::move(parts)), fingerprint_(std::move(fingerprint)) {}

  std::uint64_t vocab() const override { return parts_.vocab; }
  std::string fingerprint() const override { return fingerprint_; }

  Result<void> encode(std::string_view text, std::vector<std::uint32_t>& out) const override {
    const std::lock_guard lock(mutex_);
    if (parts_.not_nfc) YOKE_TRY_VOID(check_nfc(text));
    return around(parts_.raw, text, out, [&](std::string_view piece) {
      return around(parts_.normalized, piece, out, [&](std::string_view rest) {
        return cut_into_words(rest, parts_.stages, [&](std::string_view word) { return encode_word(word, out); });
      });
    });
  }

 private:
  Result<void> check_nfc(std::string_view text) const {
    for (std::size_t done = 0; done < text.size();) {
      const std::string_view valid = text.substr(done, utf8_prefix(text.substr(done)));
      YOKE_TRY(const auto match, parts_.not_nfc->find(valid, 0));
      if (match)
        return fail(
            ErrorKind::usage,
            fmt::format("the tokeniser wants its text in Unicode's form NFC; \"{}\" at byte {} may not be in it",
                        valid.substr(match->begin, match->end - match->begin), done + match->begin),
            "Yoke does not normalise text: make a token file with the tokeniser's own library");
      done += valid.size() + 1;
    }
    return {};
  }

  static Result<void> around(const AddedTokens& tokens, std::string_view text, std::vector<std::uint32_t>& out,
                             const std::function<Result<void>(std::string_view)>& between) {
    std::size_t done = 0;
    while (const auto match = tokens.find(text, done)) {
      YOKE_TRY_VOID(between(text.substr(done, match->begin - done)));
      out.push_back(match->token);
      done = match->end;
    }
    return between(text.substr(done));
  }

  // Text repeats its words: the tokens of short ones are kept.
  Result<void> encode_word(std::string_view word, std::vector<std::uint32_t>& out) const {
    constexpr std::size_t longest = 48, most = std::size_t{1} << 20;
    if (word.size() > longest) return parts_.bpe->encode(word, out);
    const auto known = cache_.find(word);
    if (known != cache_.end()) {
      const auto first = cached_.begin() + static_cast<std::ptrdiff_t>(known->second.first);
      out.insert(out.end(), first, first + static_cast<std::ptrdiff_t>(known->second.second));
      return {};
    }
    const std::size_t before = out.size();
    YOKE_TRY_VOID(parts_.bpe->encode(word, out));
    if (cache_.size() == most) {
      cache_.clear();
      cached_.clear();
    }
    cache_.emplace(word, std::pair(cached_.size(), out.size() - before));
    cached_.insert(cached_.end(), out.begin() + static_cast<std::ptrdiff_t>(before), out.end());
    return {};
  }

  const Parts parts_;
  const std::string fingerprint_;
  mutable std::mutex mutex_;  // of the rest, and of what the regular expressions write while they match
  mutable TextMap<std::pair<std::size_t, std::size_t>> cache_;  // word -> first and count in cached_
  mutable std::vector<std::uint32_t> cached_;
};

// Reads the parts of a file. `where` is a dotted path for messages.
class Reader {
 public:
  explicit Reader(const std::string& file) : file_(file) {}

  Result<Parts> read(const json& root) {
    YOKE_TRY_VOID(only(root, "the file",
                       {"version", "truncation", "padding", "added_tokens", "normalizer", "pre_tokenizer",
                        "post_processor", "decoder", "model"}));
    for (const char* key : {"truncation", "padding"})
      if (!member(root, key).is_null()) return wrong(fmt::format("{} is set", key), fmt::format("set {} to null", key));
    YOKE_TRY_VOID(read_model(member(root, "model")));
    YOKE_TRY_VOID(read_normalizer(member(root, "normalizer"), "normalizer"));
    YOKE_TRY_VOID(read_pre_tokenizer(member(root, "pre_tokenizer")));
    YOKE_TRY_VOID(check_post_processor(member(root, "post_processor"), "post_processor"));
    YOKE_TRY_VOID(read_added_tokens(member(root, "added_tokens")));
    return std::move(parts_);
  }

 private:
  tl::unexpected<Error> wrong(const std::string& what, const std::string& hint = {}) const {
    return fail(ErrorKind::usage, fmt::format("{}: {}, which Yoke does not support", file_, what), hint);
  }
  tl::unexpected<Error> malformed(const std::string& what) const {
    return fail(ErrorKind::usage, fmt::format("{}: {}", file_, what), "is this a Hugging Face tokenizer.json?");
  }

  static const json& member(const json& object, const char* key) {
    static const json null;
    const auto found = object.find(key);
    return found == object.end() ? null : *found;
  }
  static std::string type_of(const json& part) { return part.is_object() ? part.value("type", "") : ""; }

  Result<void> only(const json& object, const std::string& where, const std::vector<std::string>& keys) const {
    if (!object.is_object()) return malformed(where + " is not an object");
    for (const auto& [key, value] : object.items())
      if (std::find(keys.begin(), keys.end(), key) == keys.end())
        return wrong(fmt::format("{} has \"{}\"", where, key));
    return {};
  }
  // Settings that must have one of these values, or be absent.
  Result<void> fixed(const json& object, const std::string& where, const char* key,
                     const std::vector<json>& values) const {
    const auto found = object.find(key);
    if (found == object.end() || std::find(values.begin(), values.end(), *found) != values.end()) return {};
    return wrong(fmt::format("{}.{} is {}", where, key, found->dump()));
  }
  // The members of a Sequence, or the part itself.
  static std::vector<json> members(const json& part, const char* key) {
    if (type_of(part) == "Sequence") return part.at(key).get<std::vector<json>>();
    return {part};
  }

  Result<void> read_model(const json& model) {
    const std::string type = type_of(model);
    // Old files of GPT-2 do not name the type.
    if (type != "BPE" && !(type.empty() && model.contains("merges")))
      return wrong(fmt::format("model.type is {}", member(model, "type").dump()), "only byte-level BPE is supported");
    YOKE_TRY_VOID(only(model, "model",
                       {"type", "dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk",
                        "byte_fallback", "ignore_merges", "vocab", "merges"}));
    YOKE_TRY_VOID(fixed(model, "model", "dropout", {nullptr, 0}));
    YOKE_TRY_VOID(fixed(model, "model", "continuing_subword_prefix", {nullptr, ""}));
    YOKE_TRY_VOID(fixed(model, "model", "end_of_word_suffix", {nullptr, ""}));
    YOKE_TRY_VOID(fixed(model, "model", "byte_fallback", {nullptr, false}));

    TextMap<std::uint32_t> vocab;
    for (const auto& [text, id] : model.at("vocab").items()) {
      YOKE_TRY(const auto token, read_id(id, text));
      vocab.emplace(text, token);
    }
    std::vector<std::pair<std::string, std::string>> merges;
    for (const json& merge : model.at("merges")) {
      if (merge.is_array() && merge.size() == 2) {
        merges.emplace_back(merge[0].get<std::string>(), merge[1].get<std::string>());
        continue;
      }
      const auto pair = split(merge.get<std::string>(), ' ');
      if (pair.size() != 2)
        return malformed(fmt::format("merge {} is {}, not two tokens", merges.size(), merge.dump()));
      merges.emplace_back(pair[0], pair[1]);
    }
    auto bpe = Bpe::make(std::move(vocab), merges, model.value("ignore_merges", false));
    if (!bpe) return malformed(bpe.error().what);
    parts_.bpe = *std::move(bpe);
    return {};
  }

  Result<std::uint32_t> read_id(const json& id, const std::string& text) {
    if (!id.is_number_unsigned() || id.get<std::uint64_t>() > UINT32_MAX)
      return malformed(fmt::format("the id of token \"{}\" is {}", text, id.dump()));
    const auto token = id.get<std::uint32_t>();
    parts_.vocab = std::max(parts_.vocab, std::uint64_t{token} + 1);
    return token;
  }

  Result<void> read_normalizer(const json& normalizer, const std::string& where) {
    if (normalizer.is_null()) return {};
    for (const json& part : members(normalizer, "normalizers")) {
      if (type_of(part) != "NFC") return wrong(fmt::format("{} is {}", where, part.dump()));
      YOKE_TRY(parts_.not_nfc, Regex::compile(maybe_not_nfc));
    }
    return {};
  }

  Result<void> read_pre_tokenizer(const json& pre_tokenizer) {
    const auto parts = members(pre_tokenizer, "pretokenizers");
    constexpr std::size_t most = 16;  // real ones have up to four
    if (parts.size() > most) return wrong(fmt::format("pre_tokenizer has {} parts", parts.size()));
    bool byte_level = false;
    for (const json& part : parts) {
      const std::string type = type_of(part);
      if (byte_level) return wrong(fmt::format("pre_tokenizer has {} after ByteLevel", part.dump()));
      CutStage stage;
      if (type == "ByteLevel") {
        YOKE_TRY_VOID(only(part, "pre_tokenizer", {"type", "add_prefix_space", "trim_offsets", "use_regex"}));
        byte_level = true;
        stage.leading_space = part.value("add_prefix_space", true);
        if (part.value("use_regex", true)) {
          YOKE_TRY(stage.cut, byte_level_regex());
        }
      } else if (type == "Split") {
        YOKE_TRY_VOID(only(part, "pre_tokenizer", {"type", "pattern", "behavior", "invert"}));
        YOKE_TRY_VOID(fixed(part, "pre_tokenizer", "behavior", {"Isolated"}));
        YOKE_TRY_VOID(fixed(part, "pre_tokenizer", "invert", {false}));
        YOKE_TRY_VOID(only(part.at("pattern"), "pre_tokenizer.pattern", {"Regex"}));
        YOKE_TRY(stage.cut, regex(part.at("pattern").at("Regex").get<std::string>()));
      } else if (type == "Digits") {
        YOKE_TRY_VOID(only(part, "pre_tokenizer", {"type", "individual_digits"}));
        YOKE_TRY(stage.cut, regex(part.at("individual_digits").get<bool>() ? R"(\p{N})" : R"(\p{N}+)"));
      } else {
        return wrong(fmt::format("pre_tokenizer is {}", part.dump()), "only byte-level BPE is supported");
      }
      parts_.stages.push_back(std::move(stage));
    }
    if (!byte_level) return wrong("pre_tokenizer does not end with ByteLevel", "only byte-level BPE is supported");
    return {};
  }

  Result<Regex> regex(const std::string& pattern) const {
    auto compiled = Regex::compile(pattern);
    if (!compiled) return malformed(compiled.error().what);
    return compiled;
  }

  Result<void> check_post_processor(const json& processor, const std::string& where) const {
    if (processor.is_null()) return {};
    for (const json& part : members(processor, "processors")) {
      const std::string type = type_of(part);
      if (type != "ByteLevel" && type != "TemplateProcessing" && type != "RobertaProcessing" &&
          type != "BertProcessing")
        return wrong(fmt::format("{} is {}", where, part.dump()));
    }
    return {};
  }

  Result<void> read_added_tokens(const json& tokens) {
    for (const json& token : tokens) {
      YOKE_TRY_VOID(
          only(token, "an added token", {"id", "content", "single_word", "lstrip", "rstrip", "normalized", "special"}));
      const auto content = token.at("content").get<std::string>();
      const std::string where = fmt::format("added token \"{}\"", content);
      if (content.empty()) return malformed("an added token is empty");
      for (const char* key : {"single_word", "lstrip", "rstrip"}) YOKE_TRY_VOID(fixed(token, where, key, {false}));
      YOKE_TRY(const auto id, read_id(token.at("id"), content));
      const auto known = parts_.bpe->vocab().find(content);
      if (known != parts_.bpe->vocab().end() && known->second != id)
        return malformed(fmt::format("{} has id {}, and {} in the vocabulary", where, id, known->second));
      const bool normalized = token.value("normalized", false);
      if (normalized && parts_.not_nfc) {
        YOKE_TRY(const auto match, parts_.not_nfc->find(content, 0));
        if (match) return wrong(where + " may not be in Unicode's form NFC");
      }
      (normalized ? parts_.normalized : parts_.raw).add(content, id);
    }
    return {};
  }

  const std::string& file_;
  Parts parts_;
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> tokenizer_from_json(std::string_view text, const std::string& file) try {
  YOKE_TRY(Parts parts, Reader(file).read(json::parse(text)));
  return std::make_unique<JsonTokenizer>(std::move(parts), "bpe-" + content_hash(text));
} catch (const json::exception& e) {
  return fail(ErrorKind::usage, fmt::format("{}: {}", file, e.what()), "is this a whole Hugging Face tokenizer.json?");
}

}  // namespace yoke
