#include "train/checkpoint/weights_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "train/checkpoint/test_tensors.h"

namespace yoke {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

void write(const std::string& path, const std::string& tensor, float value) {
  std::vector<NamedTensor> tensors{test_tensor<float>(tensor, DType::f32, {1}, {value})};
  ASSERT_TRUE(write_safetensors(path, tensors, {}));
}

Error error_of(const std::string& folder) {
  auto opened = WeightsFolder::open(folder);
  EXPECT_FALSE(opened);
  return opened ? Error{} : opened.error();
}

TEST(WeightsFolder, OneFile) {
  TemporaryFolder folder;
  write(folder / "model.safetensors", "w", 3);
  auto weights = WeightsFolder::open(folder.path());
  ASSERT_TRUE(weights) << weights.error().what;
  EXPECT_THAT(weights->names(), ElementsAre("w"));
  EXPECT_EQ(values_of<float>(*weights->find("w")), std::vector<float>{3});
  EXPECT_EQ(weights->find("v"), nullptr);
}

TEST(WeightsFolder, ShardsByIndex) {
  TemporaryFolder folder;
  write(folder / "model-00001-of-00002.safetensors", "w", 3);
  write(folder / "model-00002-of-00002.safetensors", "v", 4);
  std::map<std::string, std::string> map{{"w", "model-00001-of-00002.safetensors"},
                                         {"v", "model-00002-of-00002.safetensors"}};
  ASSERT_TRUE(write_file_atomically(folder / index_file, weight_index_json(map, 8)));
  auto opened = WeightsFolder::open(folder.path());
  ASSERT_TRUE(opened) << opened.error().what;
  WeightsFolder weights = *std::move(opened);  // the views follow
  EXPECT_THAT(weights.names(), ElementsAre("v", "w"));
  EXPECT_EQ(values_of<float>(*weights.find("v")), std::vector<float>{4});

  map["u"] = "model-00001-of-00002.safetensors";
  ASSERT_TRUE(write_file_atomically(folder / index_file, weight_index_json(map, 8)));
  EXPECT_THAT(error_of(folder.path()).what, HasSubstr("u is in model-00001-of-00002.safetensors, which has no such"));
  map["u"] = "../model.safetensors";
  ASSERT_TRUE(write_file_atomically(folder / index_file, weight_index_json(map, 8)));
  EXPECT_EQ(error_of(folder.path()).kind, ErrorKind::failed);
  map["u"] = "absent.safetensors";
  ASSERT_TRUE(write_file_atomically(folder / index_file, weight_index_json(map, 8)));
  EXPECT_EQ(error_of(folder.path()).kind, ErrorKind::environment);
  ASSERT_TRUE(write_file_atomically(folder / index_file, "{\"weight_map\": 3}"));
  EXPECT_EQ(error_of(folder.path()).kind, ErrorKind::failed);
}

TEST(WeightsFolder, NoWeights) {
  TemporaryFolder folder;
  Error error = error_of(folder.path());
  EXPECT_EQ(error.kind, ErrorKind::environment);
  EXPECT_THAT(error.what, HasSubstr("neither model.safetensors nor model.safetensors.index.json"));
}

TEST(WeightsFolder, ATensorInTwoFiles) {
  TemporaryFolder folder;
  write(folder / "a", "w", 3);
  write(folder / "b", "w", 4);
  auto opened = WeightsFolder::open_files({folder / "a", folder / "b"});
  ASSERT_FALSE(opened);
  EXPECT_THAT(opened.error().what, HasSubstr("tensor w is in"));
}

}  // namespace
}  // namespace yoke
