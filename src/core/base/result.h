// Result<T>: a value or an Error. Libraries never print, exit or throw on bad input; they return this.
//
//   Result<Model> read_model(std::string_view text);
//   YOKE_TRY(auto model, read_model(text));   // returns the error to the caller, or defines `model`
//   YOKE_CHECK(rank < size, "rank {} of {}", rank, size);   // a programmer's error: aborts with the message
#pragma once

#include <fmt/format.h>

#include <string>
#include <tl/expected.hpp>
#include <utility>

#include "core/base/error.h"

namespace yoke {

template <class T>
using Result = tl::expected<T, Error>;

inline tl::unexpected<Error> fail(ErrorKind kind, std::string what, std::string hint = {}) {
  return tl::unexpected<Error>(Error{kind, std::move(what), std::move(hint)});
}

// Prints the message with its place and aborts.
[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& message);

}  // namespace yoke

#define YOKE_CONCAT_(a, b) a##b
#define YOKE_CONCAT(a, b) YOKE_CONCAT_(a, b)
#define YOKE_TRY_(result, target, ...)                                        \
  auto result = (__VA_ARGS__);                                                \
  if (!result) return tl::unexpected<yoke::Error>(std::move(result).error()); \
  target = *std::move(result)
// YOKE_TRY(auto x, expression of type Result<X>)
#define YOKE_TRY(target, ...) YOKE_TRY_(YOKE_CONCAT(yoke_result_, __LINE__), target, __VA_ARGS__)
// YOKE_TRY_VOID(expression of type Result<anything>): only the error is of interest
#define YOKE_TRY_VOID(...)                                                                          \
  do {                                                                                              \
    auto yoke_result_void = (__VA_ARGS__);                                                          \
    if (!yoke_result_void) return tl::unexpected<yoke::Error>(std::move(yoke_result_void).error()); \
  } while (false)
#define YOKE_CHECK(condition, ...) \
  ((condition) ? (void)0 : yoke::check_failed(__FILE__, __LINE__, #condition, fmt::format(__VA_ARGS__)))
