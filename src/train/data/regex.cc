#include "train/data/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <utility>

namespace yoke {
namespace {

std::string message(int code) {
  std::array<unsigned char, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

PCRE2_SPTR units(std::string_view text) {
  // PCRE2 wants a pointer also for nothing.
  return reinterpret_cast<PCRE2_SPTR>(text.data() == nullptr ? "" : text.data());
}

}  // namespace

std::size_t utf8_prefix(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  std::size_t at = 0;
  while (at < text.size()) {
    std::uint64_t eight;
    if (text.size() - at >= sizeof eight) {
      std::memcpy(&eight, text.data() + at, sizeof eight);
      if ((eight & 0x8080808080808080) == 0) {
        at += sizeof eight;
        continue;
      }
    }
    const unsigned lead = byte(at);
    const std::size_t length = lead < 0x80   ? 1
                               : lead < 0xc2 ? 0
                               : lead < 0xe0 ? 2
                               : lead < 0xf0 ? 3
                               : lead < 0xf5 ? 4
                                             : 0;
    if (length == 0 || text.size() - at < length) return at;
    for (std::size_t i = 1; i < length; ++i)
      if ((byte(at + i) & 0xc0) != 0x80) return at;
    // Overlong forms, surrogates, beyond U+10FFFF.
    if ((lead == 0xe0 && byte(at + 1) < 0xa0) || (lead == 0xed && byte(at + 1) >= 0xa0) ||
        (lead == 0xf0 && byte(at + 1) < 0x90) || (lead == 0xf4 && byte(at + 1) >= 0x90))
      return at;
    at += length;
  }
  return at;
}

struct Regex::Compiled {
  pcre2_code* code = nullptr;
  pcre2_match_data* data = nullptr;
  pcre2_match_context* context = nullptr;
  pcre2_jit_stack* stack = nullptr;

  ~Compiled() {
    pcre2_match_data_free(data);
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
    pcre2_code_free(code);
  }
};

Regex::Regex(std::unique_ptr<Compiled> compiled) : compiled_(std::move(compiled)) {}
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;
Regex::~Regex() = default;

Result<Regex> Regex::compile(const std::string& pattern) {
  // \h is a hexadecimal digit there and a blank here; && intersects classes there and is two characters here.
  for (const char* other : {"\\h", "\\H", "&&"})
    if (pattern.find(other) != std::string::npos)
      return fail(ErrorKind::usage, fmt::format("the pattern {} uses {}, which Yoke does not support", pattern, other));
  // Compiling takes time and stack with the length; real patterns have a few hundred bytes.
  constexpr std::size_t longest = 10000;
  if (pattern.size() > longest)
    return fail(ErrorKind::usage, fmt::format("a pattern of {} bytes, more than {}", pattern.size(), longest));

  auto compiled = std::make_unique<Compiled>();
  int code = 0;
  PCRE2_SIZE at = 0;
  compiled->code = pcre2_compile(units(pattern), pattern.size(), PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C, &code,
                                 &at, nullptr);
  if (compiled->code == nullptr)
    return fail(ErrorKind::usage,
                fmt::format("the pattern {} cannot be compiled: {} at byte {}", pattern, message(code), at));
  // Without the JIT (a kernel that forbids executable memory) matching goes on, only slower.
  pcre2_jit_compile(compiled->code, PCRE2_JIT_COMPLETE);
  compiled->data = pcre2_match_data_create(1, nullptr);
  compiled->context = pcre2_match_context_create(nullptr);
  compiled->stack = pcre2_jit_stack_create(std::size_t{32} << 10, std::size_t{4} << 20, nullptr);
  pcre2_jit_stack_assign(compiled->context, nullptr, compiled->stack);
  return Regex(std::move(compiled));
}

Result<std::optional<Regex::Match>> Regex::find(std::string_view text, std::size_t from) const {
  const int found = pcre2_match(compiled_->code, units(text), text.size(), from, PCRE2_NO_UTF_CHECK, compiled_->data,
                                compiled_->context);
  if (found == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (found < 0)
    return fail(ErrorKind::failed,
                fmt::format("the tokeniser's pattern fails at byte {} of a text: {}", from, message(found)));
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(compiled_->data);
  return Match{offsets[0], offsets[1]};
}

}  // namespace yoke
