// Regular expressions of tokenizer.json files, matched by PCRE2 over UTF-8, with classes as Unicode has them.
//
// The files mean Oniguruma's syntax. It and PCRE2 agree on what tokenisers use; the few things that both accept and
// read differently are refused.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/base/result.h"

namespace yoke {

// How many bytes from the start are well-formed UTF-8.
std::size_t utf8_prefix(std::string_view text);

// One thread at a time.
class Regex {
 public:
  struct Match {
    std::size_t begin = 0, end = 0;
  };

  static Result<Regex> compile(const std::string& pattern);
  Regex(Regex&&) noexcept;
  Regex& operator=(Regex&&) noexcept;
  ~Regex();

  // The first match at or after `from` (the start of a character), in text that is well-formed UTF-8.
  Result<std::optional<Match>> find(std::string_view text, std::size_t from) const;

 private:
  struct Compiled;
  explicit Regex(std::unique_ptr<Compiled> compiled);
  std::unique_ptr<Compiled> compiled_;
};

}  // namespace yoke
