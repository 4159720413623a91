#include "train/checkpoint/checkpoint_writer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "os/file.h"
#include "train/checkpoint/test_tensors.h"

namespace yoke {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Waits for what another thread does, with a limit.
template <class Condition>
bool eventually(Condition condition) {
  for (int i = 0; i < 20000; ++i) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return false;
}

void expect_newest(const std::string& root, std::int64_t step) {
  std::vector<std::string> notes;
  auto newest = newest_complete(root, notes);
  ASSERT_TRUE(newest) << newest.error().what;
  ASSERT_TRUE(newest->has_value());
  expect_checkpoint(**newest, step);
  EXPECT_THAT(notes, IsEmpty());
}

TEST(CheckpointWriter, OneRank) {
  TemporaryFolder folder;
  std::string root = folder / "a/checkpoints";
  CheckpointWriter writer({.root = root});
  ASSERT_TRUE(writer.finish());
  ASSERT_TRUE(writer.submit(test_job(7, 0, 1)));
  ASSERT_TRUE(writer.finish());
  EXPECT_THAT(*list_folder(root), ElementsAre("step-00000007"));
  EXPECT_THAT(*list_folder(root + "/step-00000007"),
              ElementsAre("config.json", "manifest.json", "model-00001-of-00001.safetensors",
                          "model.safetensors.index.json", "optimizer-00001-of-00001.safetensors"));
  expect_newest(root, 7);

  auto finished = writer.take_finished();
  ASSERT_EQ(finished.size(), 1u);
  EXPECT_EQ(finished[0].step, 7);
  EXPECT_EQ(finished[0].path, root + "/step-00000007");
  EXPECT_EQ(finished[0].note, "");
  std::uint64_t bytes = 0;
  auto names = list_folder(finished[0].path);
  for (const std::string& name : *names) bytes += *file_size(finished[0].path + "/" + name);
  EXPECT_EQ(finished[0].bytes, static_cast<std::int64_t>(bytes));
  EXPECT_THAT(writer.take_finished(), IsEmpty());
  EXPECT_GT(writer.waited_seconds(), 0);
}

TEST(CheckpointWriter, RanksAsThreadsAndKeep) {
  TemporaryFolder folder;
  std::vector<std::future<void>> ranks;
  for (int rank = 0; rank < 3; ++rank)
    ranks.push_back(std::async(std::launch::async, [&, rank] {
      CheckpointWriter writer({.root = folder.path(), .rank = rank, .ranks = 3, .keep = 2, .timeout = 60});
      for (std::int64_t step : {10, 20, 30, 40, 50}) {
        auto submitted = writer.submit(test_job(step, rank, 3));
        ASSERT_TRUE(submitted) << submitted.error().what;
      }
      auto finished = writer.finish();
      ASSERT_TRUE(finished) << finished.error().what;
      EXPECT_EQ(writer.take_finished().size(), rank == 0 ? 5u : 0u);
    }));
  for (auto& rank : ranks) rank.get();
  EXPECT_THAT(*list_folder(folder.path()), ElementsAre("step-00000040", "step-00000050"));
  expect_newest(folder.path(), 50);
}

TEST(CheckpointWriter, AnAbsentRankIsNamed) {
  TemporaryFolder folder;
  write_test_checkpoint_by(1, folder.path(), 10, "before");
  CheckpointWriter present({.root = folder.path(), .rank = 2, .ranks = 4, .attempt = "a"});
  ASSERT_TRUE(present.submit(test_job(20, 2, 4)));
  ASSERT_TRUE(present.finish());
  CheckpointWriter writer({.root = folder.path(), .rank = 0, .ranks = 4, .timeout = 0.01, .attempt = "a"});
  ASSERT_TRUE(writer.submit(test_job(20, 0, 4)));
  auto finished = writer.finish();
  ASSERT_FALSE(finished);
  EXPECT_EQ(finished.error().kind, ErrorKind::timeout);
  EXPECT_THAT(finished.error().what, HasSubstr("step 20: ranks 1, 3 did not write their part within 10 ms"));
  EXPECT_TRUE(writer.finish());  // told once
  expect_newest(folder.path(), 10);
}

TEST(CheckpointWriter, AFailureIsToldBySubmitAndTheNextOneWorks) {
  TemporaryFolder folder;
  CheckpointWriter writer({.root = folder.path()});
  CheckpointJob bad = test_job(1, 0, 1);
  bad.model.push_back(bad.model[0]);
  ASSERT_TRUE(writer.submit(std::move(bad)));
  auto told = writer.submit(test_job(2, 0, 1));
  ASSERT_FALSE(told);
  EXPECT_THAT(told.error().what, HasSubstr("two tensors are called layers.0.weight"));
  ASSERT_TRUE(writer.submit(test_job(3, 0, 1)));
  ASSERT_TRUE(writer.finish());
  EXPECT_THAT(*list_folder(folder.path()), ElementsAre("step-00000003"));

  CheckpointJob state = test_job(4, 0, 1);
  state.state_json = "[]";
  ASSERT_TRUE(writer.submit(std::move(state)));
  EXPECT_THAT(writer.finish().error().what, HasSubstr("the state of a checkpoint is no JSON object"));
  expect_newest(folder.path(), 3);
}

TEST(CheckpointWriter, TheSameWeightFromTwoRanks) {
  TemporaryFolder folder;
  CheckpointWriter zero({.root = folder.path(), .rank = 0, .ranks = 2, .timeout = 60});
  CheckpointWriter one({.root = folder.path(), .rank = 1, .ranks = 2});
  ASSERT_TRUE(zero.submit(test_job(1, 0, 2)));
  ASSERT_TRUE(one.submit(test_job(1, 0, 2)));
  ASSERT_TRUE(one.finish());
  EXPECT_THAT(zero.finish().error().what, HasSubstr("weight layers.0.weight is in model-00001-of-00002"));
}

TEST(CheckpointWriter, TheSameStepAgainReplacesIt) {
  TemporaryFolder folder;
  CheckpointWriter writer({.root = folder.path()});
  CheckpointJob other = test_job(5, 0, 1);
  other.model.pop_back();
  ASSERT_TRUE(writer.submit(std::move(other)));
  ASSERT_TRUE(writer.submit(test_job(5, 0, 1)));
  ASSERT_TRUE(writer.finish());
  EXPECT_THAT(*list_folder(folder.path()), ElementsAre("step-00000005"));
  expect_newest(folder.path(), 5);
}

TEST(CheckpointWriter, AKillWhileReplacingLosesNothing) {
  TemporaryFolder folder;
  write_test_checkpoint_by(2, folder.path(), 5, "a");
  ASSERT_TRUE(rename_path(folder / "step-00000005", folder / ".step-00000005.replaced"));
  expect_newest(folder.path(), 5);
  write_test_checkpoint_by(2, folder.path(), 6, "b");
  EXPECT_THAT(*list_folder(folder.path()), ElementsAre("step-00000005", "step-00000006"));
}

TEST(CheckpointWriter, LeftoversGoAndOthersStay) {
  TemporaryFolder folder;
  for (const char* name : {".step-00000004.partial-a.1", ".step-00000003.removed", ".step-00000009.partial-nonsense",
                           ".step-00000005.partial-b.2", "notes", ".hidden", "step-7"})
    ASSERT_TRUE(make_folders(folder / name + "/x"));
  write_test_checkpoint_by(1, folder.path(), 5, "b");
  // b.2 may be of a rank that is ahead.
  EXPECT_THAT(*list_folder(folder.path()),
              ElementsAre(".hidden", ".step-00000005.partial-b.2", "notes", "step-00000005", "step-7"));
}

TEST(CheckpointWriter, LaterStepsAreNotCountedAndNotRemoved) {
  TemporaryFolder folder;
  for (std::int64_t step : {10, 20, 30}) write_test_checkpoint_by(1, folder.path(), step, "a" + std::to_string(step));
  ASSERT_TRUE(write_test_checkpoint({.root = folder.path(), .keep = 1, .attempt = "b"}, 15));
  EXPECT_THAT(*list_folder(folder.path()), ElementsAre("step-00000015", "step-00000020", "step-00000030"));
}

TEST(CheckpointWriter, TensorsAreFreedOnceWrittenAlsoWhileRank0Waits) {
  TemporaryFolder folder;
  for (int rank : {0, 1}) {
    CheckpointWriter writer({.root = folder.path(), .rank = rank, .ranks = 3});
    CheckpointJob job = test_job(1, rank, 3);
    std::weak_ptr<const void> tensor = job.model[0].owner;
    ASSERT_TRUE(writer.submit(std::move(job)));
    EXPECT_TRUE(eventually([&] { return tensor.expired(); })) << "rank " << rank;
  }  // and a writer that waits for absent ranks can be destroyed
  EXPECT_FALSE(exists(folder / "step-00000001"));
}

}  // namespace
}  // namespace yoke
