// How the command line explains itself: help that opens with examples, and "did you mean".
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "core/base/error.h"

namespace yoke {

// The footer of a command holds its examples, which come first.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_help(const CLI::App* app, std::string name, CLI::AppFormatMode mode) const override;
  std::string make_footer(const CLI::App*) const override { return ""; }
};

// The error (usage) for arguments that could not be parsed: names the one that is wrong and what it may have meant.
Error usage_error(const CLI::App& app, const std::string& what);

}  // namespace yoke
