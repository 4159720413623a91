#include "ops/launch/lines.h"

#include <gtest/gtest.h>
#include <rapidcheck.h>

namespace yoke {
namespace {

using Lines = std::vector<std::string>;

TEST(LineSplitter, WholeAndPartialLines) {
  LineSplitter s;
  EXPECT_EQ(s.feed("one\ntw"), Lines{"one"});
  EXPECT_EQ(s.feed("o"), Lines{});
  EXPECT_EQ(s.feed("\n\nthree\n"), (Lines{"two", "", "three"}));
  EXPECT_EQ(s.flush(), Lines{});
  EXPECT_EQ(s.feed("rest"), Lines{});
  EXPECT_EQ(s.flush(), Lines{"rest"});
  EXPECT_EQ(s.flush(), Lines{});
}

TEST(LineSplitter, CarriageReturns) {
  LineSplitter s;
  EXPECT_EQ(s.feed("\r 10%\r 20%\r"), (Lines{" 10%", " 20%"}));
  EXPECT_EQ(s.feed("\ndos\r\n\r\nunix\n"), (Lines{"dos", "", "unix"}));
}

TEST(LineSplitter, EndlessLine) {
  LineSplitter s;
  Lines lines = s.feed(std::string(LineSplitter::max_line + 5, 'x') + "\n");
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[0].size(), LineSplitter::max_line);
  EXPECT_EQ(lines[1], "xxxxx");
}

// However the bytes are cut, the lines are the same, and without carriage returns they are the text.
TEST(LineSplitter, PiecesDoNotMatter) {
  ASSERT_TRUE(rc::check([] {
    auto text = *rc::gen::container<std::string>(rc::gen::element('a', 'b', '\n', '\r'));
    auto cuts = *rc::gen::container<std::vector<std::size_t>>(rc::gen::inRange<std::size_t>(1, 5));
    auto all = [](LineSplitter& s, Lines lines) {
      for (std::string& line : s.flush()) lines.push_back(line);
      return lines;
    };
    LineSplitter whole, pieces;
    Lines expected = all(whole, whole.feed(text)), got;
    std::string_view rest = text;
    for (std::size_t cut : cuts) {
      for (std::string& line : pieces.feed(rest.substr(0, cut))) got.push_back(line);
      rest.remove_prefix(std::min(cut, rest.size()));
    }
    for (std::string& line : pieces.feed(rest)) got.push_back(line);
    RC_ASSERT(all(pieces, got) == expected);
    if (text.find('\r') == std::string::npos) {
      std::string joined;
      for (const std::string& line : expected) joined += line + "\n";
      if (!text.empty() && text.back() != '\n') text += '\n';
      RC_ASSERT(joined == text);
    }
  }));
}

TEST(LastLines, KeepsTheNewest) {
  LastLines last;
  for (int i = 0; i < 50; ++i) last.add(std::to_string(i));
  EXPECT_EQ(last.lines().size(), LastLines::count);
  EXPECT_EQ(last.lines().front(), std::to_string(50 - LastLines::count));
  EXPECT_EQ(last.lines().back(), "49");
}

}  // namespace
}  // namespace yoke
