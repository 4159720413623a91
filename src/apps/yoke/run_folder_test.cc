#include "apps/yoke/run_folder.h"

#include "os/testing.h"

namespace yoke {
namespace {

namespace fs = std::filesystem;

TEST(RunFolder, NewOnesAndLatest) {
  TestFolder folder;
  auto first = make_run_folder(folder.path("runs"), "tiny"), second = make_run_folder(folder.path("runs"), "tiny");
  ASSERT_TRUE(first && second);
  EXPECT_NE(*first, *second);
  EXPECT_TRUE(first->starts_with(folder.path("runs/tiny/2")));
  for (const char* sub : {"logs", "events", "checkpoints", "tensorboard"})
    EXPECT_TRUE(fs::is_directory(*second + "/" + sub));
  fs::path latest = folder.path("runs/tiny/latest");
  EXPECT_TRUE(fs::read_symlink(latest).is_relative());
  EXPECT_TRUE(fs::equivalent(latest, *second));
  EXPECT_EQ(std::distance(fs::directory_iterator(folder.path("runs/tiny")), {}), 3);
}

TEST(RunFolder, PlaceThatCannotBeMade) {
  TestFolder folder;
  folder.write("runs", "a file");
  auto result = make_run_folder(folder.path("runs"), "tiny");
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().kind, ErrorKind::environment);
  EXPECT_NE(result.error().what.find(folder.path("runs")), std::string::npos);
}

}  // namespace
}  // namespace yoke
