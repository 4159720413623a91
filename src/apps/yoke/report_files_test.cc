#include "apps/yoke/report_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "os/file.h"

namespace yoke {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

std::string step_line(std::int64_t step) {
  StepEvent event;
  event.step = step;
  event.loss = 2;
  event.seconds.total = 1;
  return to_json_line({step, 0, event}) + "\n";
}

class ReportFiles : public testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) {
    std::string path = folder / name;
    ASSERT_TRUE(make_folders(path.substr(0, path.rfind('/'))));
    ASSERT_TRUE(write_file_atomically(path, text));
  }

  TemporaryFolder folder;
};

TEST_F(ReportFiles, ALineCutShortIsSkippedQuietly) {
  std::string cut = step_line(2).substr(0, 30);
  write("events/rank-00000.jsonl", step_line(0) + step_line(1) + cut);
  // Killed in the middle of a line, and restarted: the next record stands on the same line.
  write("events/rank-00001.jsonl", step_line(0) + cut + step_line(1));
  auto data = read_run(folder.path());
  ASSERT_TRUE(data) << data.error().what;
  EXPECT_EQ(data->records.size(), 4u);
  EXPECT_THAT(data->problems, IsEmpty());
}

TEST_F(ReportFiles, OtherBadLinesAreCounted) {
  write("events/rank-00000.jsonl", step_line(0) + "\nwhat\n" + step_line(1) + "{}\n");
  write("events/notes.txt", "not for us\n");
  auto data = read_run(folder.path());
  ASSERT_TRUE(data) << data.error().what;
  EXPECT_EQ(data->records.size(), 2u);
  EXPECT_THAT(data->problems,
              ElementsAre("events/rank-00000.jsonl: 2 lines could not be read; line 3: telemetry record: it "
                          "is not JSON, from byte 1 on"));
}

TEST_F(ReportFiles, WritesBothReportsAndSaysWhereTheyAre) {
  write("run.json", R"({"spec":{"name":"tiny"}})");
  write("events/rank-00000.jsonl", step_line(0) + step_line(1));
  auto summary = write_report(folder.path());
  ASSERT_TRUE(summary) << summary.error().what;
  EXPECT_THAT(*summary, HasSubstr("tiny: unfinished, 2 steps"));
  EXPECT_THAT(*summary, HasSubstr(folder / "report.html"));
  EXPECT_THAT(read_file(folder / "report.html").value(), HasSubstr("<h1>tiny</h1>"));
  EXPECT_THAT(read_file(folder / "report.json").value(), HasSubstr("\"steps_done\": 2"));
}

TEST_F(ReportFiles, AFolderThatIsNoRunIsAUsageError) {
  auto summary = write_report(folder.path());
  ASSERT_FALSE(summary);
  EXPECT_EQ(summary.error().kind, ErrorKind::usage);
  EXPECT_FALSE(exists(folder / "report.html"));
}

TEST_F(ReportFiles, ARunMeansItsNewestFolder) {
  write("runs/tiny/latest/run.json", "{}");
  EXPECT_EQ(find_run_dir(folder / "runs/tiny").value(), folder / "runs/tiny/latest");
  EXPECT_EQ(find_run_dir(folder / "runs/tiny/latest").value(), folder / "runs/tiny/latest");
  auto missing = find_run_dir(folder / "runs/other");
  ASSERT_FALSE(missing);
  EXPECT_EQ(missing.error().kind, ErrorKind::usage);
  EXPECT_THAT(missing.error().what, HasSubstr("runs/other"));
}

}  // namespace
}  // namespace yoke
