// From text to tokens. Three kinds:
//   "bytes"          every byte is a token; vocab 256
//   *.model          a sentencepiece model
//   *.json           a Hugging Face tokenizer.json with byte-level BPE (tokenizer_json.h)
//
// Nothing is put before, after or between texts: encode() is what the reference implementations give without special
// tokens added. Text should be UTF-8; what is done with bytes that are not is said by each kind.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/result.h"

namespace yoke {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  // Appends the tokens of the text, all below vocab(). May be called from any thread.
  virtual Result<void> encode(std::string_view text, std::vector<std::uint32_t>& out) const = 0;
  virtual std::uint64_t vocab() const = 0;
  // Equal only for tokenisers that encode everything alike: the kind and a hash of the file.
  virtual std::string fingerprint() const = 0;
  // Whether a text may be cut anywhere and encoded in pieces.
  virtual bool cuts_anywhere() const { return false; }
};

// `name` as in the run spec's data.tokenizer.
Result<std::unique_ptr<Tokenizer>> open_tokenizer(const std::string& name);

std::unique_ptr<Tokenizer> byte_tokenizer();

// From the content of a .model file; `file` is for messages. Bytes that are not UTF-8 become U+FFFD. Where two ways to
// cut a text score the same, which happens with unigram models, versions of the library choose differently.
Result<std::unique_ptr<Tokenizer>> sentencepiece_tokenizer(const std::string& content, const std::string& file);

}  // namespace yoke
