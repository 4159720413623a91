#include "train/checkpoint/checkpoint_reader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>

#include "os/file.h"
#include "train/checkpoint/test_tensors.h"

namespace yoke {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// In a moment: without fsync.
void overwrite(const std::string& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary);
  ASSERT_TRUE(file << text << std::flush);
}

class CheckpointReaderTest : public ::testing::Test {
 protected:
  void SetUp() override {
    write_test_checkpoint_by(2, root_.path(), 10, "a");
    write_test_checkpoint_by(3, root_.path(), 20, "b");  // another number of ranks
  }

  // The newest is passed over with a note, the older one is found, and asking for the newest is an error.
  void expect_damaged(const std::string& what) {
    std::vector<std::string> notes;
    auto newest = newest_complete(root_.path(), notes);
    ASSERT_TRUE(newest) << newest.error().what;
    ASSERT_TRUE(newest->has_value());
    expect_checkpoint(**newest, 10);
    EXPECT_THAT(notes, ElementsAre(HasSubstr("step-00000020 is passed over")));
    EXPECT_THAT(notes, ElementsAre(HasSubstr(what)));
    auto opened = CheckpointReader::open(newest_);
    ASSERT_FALSE(opened);
    EXPECT_EQ(opened.error().kind, ErrorKind::failed);
    EXPECT_THAT(opened.error().what, HasSubstr(what));
  }

  TemporaryFolder root_;
  std::string newest_ = root_ / "step-00000020";
};

TEST_F(CheckpointReaderTest, ReadsWhatAnyNumberOfRanksWrote) {
  std::vector<std::string> notes;
  auto newest = newest_complete(root_.path(), notes);
  ASSERT_TRUE(newest && newest->has_value());
  expect_checkpoint(**newest, 20);
  EXPECT_EQ((*newest)->path(), newest_);
  EXPECT_EQ((*newest)->ranks(), 3);
  EXPECT_THAT(notes, IsEmpty());
  EXPECT_EQ((*newest)->find_model("absent"), nullptr);
  for (bool checksums : {true, false}) {
    auto older = CheckpointReader::open(root_ / "step-00000010", checksums);
    ASSERT_TRUE(older) << older.error().what;
    expect_checkpoint(*older, 10);
    EXPECT_EQ(older->ranks(), 2);
  }
  ASSERT_TRUE(remove_tree(newest_));  // the views outlive the files
  expect_checkpoint(**newest, 20);
}

TEST_F(CheckpointReaderTest, AFlippedBitAnywhere) {
  auto names = list_folder(newest_);
  ASSERT_THAT(*names, SizeIs(9));
  for (const std::string& name : *names) {
    std::string path = newest_ + "/" + name;
    const std::string text = *read_file(path);
    // The length of a safetensors header, the header, the middle, the end; and what stands between in JSON.
    for (std::size_t at : {std::size_t{0}, std::size_t{7}, std::size_t{20}, text.size() / 2, text.size() - 3}) {
      SCOPED_TRACE(name + " byte " + std::to_string(at));
      std::string flipped = text;
      flipped[at] = static_cast<char>(flipped[at] ^ 0x40);
      overwrite(path, flipped);
      expect_damaged(path);
    }
    overwrite(path, text);
  }
  EXPECT_TRUE(CheckpointReader::open(newest_));
}

TEST_F(CheckpointReaderTest, ATruncatedOrAbsentFile) {
  auto names = list_folder(newest_);
  for (const std::string& name : *names) {
    SCOPED_TRACE(name);
    std::string path = newest_ + "/" + name;
    const std::string text = *read_file(path);
    for (std::size_t size : {std::size_t{0}, std::size_t{9}, text.size() / 2, text.size() - 2}) {
      overwrite(path, text.substr(0, size));
      expect_damaged(path);
    }
    ASSERT_TRUE(remove_tree(path));
    expect_damaged(path);
    overwrite(path, text);
  }
}

TEST_F(CheckpointReaderTest, AFolderWithAnotherStepsName) {
  ASSERT_TRUE(rename_path(newest_, root_ / "step-00000021"));
  std::vector<std::string> notes;
  auto newest = newest_complete(root_.path(), notes);
  ASSERT_TRUE(newest && newest->has_value());
  EXPECT_EQ((*newest)->step(), 10);
  EXPECT_THAT(notes, ElementsAre(HasSubstr("step-00000021 is passed over: its manifest says step 20")));
}

TEST_F(CheckpointReaderTest, NoneAtAll) {
  std::vector<std::string> notes;
  TemporaryFolder empty;
  for (const std::string& root : {empty.path(), empty / "absent"}) {
    auto newest = newest_complete(root, notes);
    ASSERT_TRUE(newest);
    EXPECT_FALSE(newest->has_value());
  }
  ASSERT_TRUE(make_folders(empty / "step-00000001"));
  auto newest = newest_complete(empty.path(), notes);
  ASSERT_TRUE(newest);
  EXPECT_FALSE(newest->has_value());
  EXPECT_THAT(notes, ElementsAre(HasSubstr("manifest.json: No such file")));

  auto opened = CheckpointReader::open(empty / "absent");
  ASSERT_FALSE(opened);
  EXPECT_EQ(opened.error().kind, ErrorKind::environment);
}

}  // namespace
}  // namespace yoke
