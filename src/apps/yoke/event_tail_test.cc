#include "apps/yoke/event_tail.h"

#include "os/testing.h"

namespace yoke {
namespace {

std::string line(std::int64_t step) {
  return to_json_line({.time_ns = 1, .rank = 0, .event = ValidationEvent{.step = step}});
}

std::vector<std::int64_t> steps(const std::vector<Record>& records) {
  std::vector<std::int64_t> result;
  for (const Record& r : records) result.push_back(std::get<ValidationEvent>(r.event).step);
  return result;
}

TEST(EventTail, FollowsWholeLines) {
  TestFolder folder;
  EventTail tail(folder.path("e.jsonl"), true);
  EXPECT_TRUE(tail.poll().empty());  // no file yet
  std::ofstream file(folder.path("e.jsonl"));
  file << line(1) << '\n' << line(2).substr(0, 10) << std::flush;
  EXPECT_EQ(steps(tail.poll()), std::vector<std::int64_t>{1});
  file << line(2).substr(10) << std::flush;
  EXPECT_TRUE(tail.poll().empty());
  file << "\nnonsense\n" << line(3) << "\n" << std::flush;
  EXPECT_EQ(steps(tail.poll()), (std::vector<std::int64_t>{2, 3}));
  EXPECT_TRUE(tail.poll().empty());
}

TEST(EventTail, MaySkipWhatIsThere) {
  TestFolder folder;
  folder.write("e.jsonl", line(1) + "\n");
  EventTail tail(folder.path("e.jsonl"), false);
  std::ofstream(folder.path("e.jsonl"), std::ios::app) << line(2) << "\n";
  EXPECT_EQ(steps(tail.poll()), std::vector<std::int64_t>{2});
}

}  // namespace
}  // namespace yoke
