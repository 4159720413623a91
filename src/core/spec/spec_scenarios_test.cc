// The broken specs of tests/scenarios/spec; their format is in the README there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/base/text.h"
#include "core/spec/run_spec.h"

namespace yoke {
namespace {

struct Case {
  std::string place;  // "keys.txt: a typing error in a key"
  SpecSources sources;
  std::string what, hint;
};

// "--- what: text" -> "text", for the given word.
bool directive(const std::string& line, const std::string& word, std::string& out) {
  const std::string start = "--- " + word + ": ";
  if (!line.starts_with(start)) return false;
  out = line.substr(start.size());
  return true;
}

std::vector<Case> read_cases(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::vector<Case> cases;
  for (std::string line, value; std::getline(in, line);) {
    if (line.starts_with("=== ")) {
      Case& added = cases.emplace_back();
      added.place = path.filename().string() + ": " + line.substr(4);
      added.sources.file = "spec.toml";
      continue;
    }
    if (cases.empty()) continue;
    Case& last = cases.back();
    if (directive(line, "what", last.what) || directive(line, "hint", last.hint)) continue;
    if (directive(line, "set", value)) {
      last.sources.sets.push_back(value);
    } else if (directive(line, "env", value)) {
      const std::size_t equals = value.find('=');
      last.sources.environment.emplace_back(value.substr(0, equals), value.substr(equals + 1));
    } else {
      EXPECT_FALSE(line.starts_with("---")) << path << ": " << line;
      last.sources.text += line + "\n";
    }
  }
  return cases;
}

TEST(SpecScenarios, EachGivesOneErrorWithAHint) {
  std::size_t count = 0;
  for (const auto& entry : std::filesystem::directory_iterator(YOKE_SOURCE_DIR "/tests/scenarios/spec")) {
    if (entry.path().extension() != ".txt") continue;
    for (const Case& c : read_cases(entry.path())) {
      SCOPED_TRACE(c.place);
      ++count;
      ASSERT_FALSE(c.what.empty() || c.hint.empty());
      auto parsed = parse_run_spec(c.sources);
      ASSERT_FALSE(parsed) << "no error";
      const Error& error = parsed.error();
      EXPECT_EQ(error.kind, ErrorKind::usage);
      EXPECT_THAT(error.what, testing::HasSubstr(c.what));
      EXPECT_THAT(error.hint, testing::HasSubstr(c.hint));
      EXPECT_EQ(error.what.find('\n'), std::string::npos) << "one sentence";
    }
  }
  EXPECT_GE(count, 40u);
}

}  // namespace
}  // namespace yoke
