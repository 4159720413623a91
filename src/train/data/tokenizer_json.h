// Hugging Face's tokenizer.json, for byte-level BPE (GPT-2, Llama 3, Qwen, ...).
//
// Read: model BPE; pre_tokenizer ByteLevel, or a Sequence of Split (a regular expression, isolated), Digits and, last,
// ByteLevel; added tokens that match anywhere; normalizer none or NFC, the latter for texts that are certainly in that
// form already (others are an error). Post-processors only add special tokens, which encode() does not, and decoders
// have no part in it. Anything else that could change the tokens is an error that names it.
//
// Bytes that are not UTF-8 are encoded as the bytes they are.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "core/base/result.h"
#include "train/data/tokenizer.h"

namespace yoke {

// `file` names the source in errors, which are of kind usage.
Result<std::unique_ptr<Tokenizer>> tokenizer_from_json(std::string_view json, const std::string& file);

}  // namespace yoke
