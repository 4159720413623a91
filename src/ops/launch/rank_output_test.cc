#include "ops/launch/rank_output.h"

#include <gtest/gtest.h>

#include "os/testing.h"

namespace yoke {
namespace {

struct Heard {
  std::vector<std::string> lines;
  RankOutput::Sink sink() {
    return [this](Stream s, const std::string& line) { lines.push_back((s == Stream::out ? "o " : "e ") + line); };
  }
};

void put(const Fd& fd, std::string_view text) {
  ASSERT_EQ(::write(fd.get(), text.data(), text.size()), static_cast<ssize_t>(text.size()));
}

TEST(RankOutput, LinesOfBothStreams) {
  Heard heard;
  auto output = RankOutput::open("");
  ASSERT_TRUE(output);
  auto ends = output->connect(0);
  ASSERT_TRUE(ends);
  put(ends->out, "a");
  put(ends->err, "x\ny");
  output->drain(heard.sink());
  put(ends->out, "b\n");
  output->read(Stream::out, heard.sink());
  EXPECT_EQ(heard.lines, (std::vector<std::string>{"e x", "o ab"}));
  output->finish(heard.sink());
  EXPECT_EQ(heard.lines.back(), "e y");
  EXPECT_EQ(output->fd(Stream::out), -1);
  EXPECT_EQ(output->last_lines(), (std::vector<std::string>{"x", "ab", "y"}));
}

TEST(RankOutput, EndOfAStreamGivesItsLastLine) {
  Heard heard;
  auto output = RankOutput::open("");
  auto ends = output->connect(0);
  put(ends->out, "no end");
  ends->out.reset();
  output->drain(heard.sink());
  EXPECT_EQ(heard.lines, std::vector<std::string>{"o no end"});
  EXPECT_EQ(output->fd(Stream::out), -1);
  EXPECT_NE(output->fd(Stream::err), -1);
}

TEST(RankOutput, LogHoldsTheBytesOfAllAttempts) {
  TestFolder folder;
  Heard heard;
  auto output = RankOutput::open(folder.path("rank.log"));
  ASSERT_TRUE(output);
  for (int attempt : {0, 1}) {
    auto ends = output->connect(attempt);
    put(ends->out, "\r50%\n");
    output->finish(heard.sink());
  }
  std::string log = folder.read("rank.log");
  EXPECT_EQ(log.find("=== attempt 0, "), 0u);
  EXPECT_NE(log.find(" ===\n\r50%\n=== attempt 1, "), std::string::npos) << log;
}

TEST(RankOutput, FullDiskIsAWarningOnce) {
  if (!std::filesystem::exists("/dev/full")) GTEST_SKIP();
  Heard heard;
  auto output = RankOutput::open("/dev/full");
  ASSERT_TRUE(output);
  auto ends = output->connect(0);
  put(ends->out, "line\n");
  output->drain(heard.sink());
  EXPECT_EQ(heard.lines, std::vector<std::string>{"o line"});
  EXPECT_NE(output->take_log_problem().find("/dev/full: No space left"), std::string::npos);
  EXPECT_EQ(output->take_log_problem(), "");
}

TEST(RankOutput, LogThatCannotBeOpened) {
  auto output = RankOutput::open("/no/such/folder/rank.log");
  ASSERT_FALSE(output);
  EXPECT_EQ(output.error().kind, ErrorKind::environment);
}

}  // namespace
}  // namespace yoke
