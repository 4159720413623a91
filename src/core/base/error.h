// What went wrong, told to a person: one sentence with the offending value and where it came from, and what to do.
//
// Every function that can fail on input or on the outside world returns Result<T> (result.h) with one of these.
#pragma once

#include <string>

namespace yoke {

enum class ErrorKind {
  usage,        // a flag or a spec is wrong: exit code 2
  failed,       // it ran, and the answer is bad: 1
  environment,  // something outside is missing, unreadable, full or too old: 3
  timeout,      // 4
  interrupted,  // 130
};

struct Error {
  ErrorKind kind = ErrorKind::failed;
  std::string what;  // "config.json: hidden_size is 100, which 6 heads do not divide"
  std::string hint;  // "choose a hidden size that is a multiple of the heads"; may be empty

  bool operator==(const Error&) const = default;
};

// The exit code of a program that ends with this kind of error.
int exit_code(ErrorKind kind);

}  // namespace yoke
