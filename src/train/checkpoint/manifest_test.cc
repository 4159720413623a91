#include "train/checkpoint/manifest.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace yoke {
namespace {

using ::testing::HasSubstr;

Manifest sample() {
  Manifest manifest{
      .step = 100, .ranks = 2, .files = {}, .state_json = R"({"seed": 1, "lr": 0.1, "list": [1, -2, 1e300]})"};
  std::uint64_t number = 0;
  for (std::int64_t rank = 0; rank < 2; ++rank)
    for (const char* kind : {"model", "optimizer"})
      manifest.files.push_back({shard_file(kind, rank, 2), ++number, 0xfedcba9876543210u + number});
  manifest.files.push_back({index_file, 10, 1});
  manifest.files.push_back({config_file, 0, 2});
  return manifest;
}

TEST(Manifest, ComesBack) {
  auto text = to_json(sample());
  ASSERT_TRUE(text);
  auto read = manifest_from_json(*text, "m");
  ASSERT_TRUE(read) << read.error().what;
  EXPECT_EQ(read->step, 100);
  EXPECT_EQ(read->ranks, 2);
  EXPECT_EQ(read->files, sample().files);
  EXPECT_EQ(read->state_json, R"({"list":[1,-2,1e+300],"lr":0.1,"seed":1})");
}

TEST(Manifest, EveryFlippedBitIsFoundOrMeansTheSame) {
  const std::string text = *to_json(sample());
  const Manifest original = *manifest_from_json(text, "m");
  int found = 0;
  for (std::size_t byte = 0; byte < text.size(); ++byte) {
    for (int bit = 0; bit < 8; ++bit) {
      std::string flipped = text;
      flipped[byte] = static_cast<char>(flipped[byte] ^ (1 << bit));
      auto read = manifest_from_json(flipped, "m");
      if (!read) {
        EXPECT_EQ(read.error().kind, ErrorKind::failed);
        ++found;
      } else {  // white space
        EXPECT_EQ(read->step, original.step);
        EXPECT_EQ(read->files, original.files);
        EXPECT_EQ(read->state_json, original.state_json);
      }
    }
  }
  EXPECT_GT(found, static_cast<int>(text.size()) * 6);
}

TEST(Manifest, RefusesWhatIsNoManifest) {
  auto error_of = [](Manifest manifest) {
    auto text = to_json(manifest);
    EXPECT_TRUE(text);
    auto read = manifest_from_json(*text, "here/manifest.json");
    EXPECT_FALSE(read);
    return read ? "" : read.error().what;
  };
  Manifest manifest = sample();
  manifest.files.pop_back();
  EXPECT_THAT(error_of(manifest), HasSubstr("here/manifest.json does not list"));
  manifest = sample();
  manifest.files.push_back(manifest.files[0]);
  EXPECT_THAT(error_of(manifest), HasSubstr("does not list"));
  manifest = sample();
  manifest.files[0].name = "../passwd";
  EXPECT_THAT(error_of(manifest), HasSubstr("no name of a file"));
  for (std::int64_t ranks : {std::int64_t{0}, std::int64_t{3}, INT64_MAX}) {
    manifest = sample();
    manifest.ranks = ranks;
    EXPECT_THAT(error_of(manifest), HasSubstr("does not list"));
  }
  auto newer = manifest_from_json(R"({"schema": 2})", "m");
  ASSERT_FALSE(newer);
  EXPECT_THAT(newer.error().what, HasSubstr("schema 2"));
  EXPECT_FALSE(manifest_from_json("", "m"));
  EXPECT_FALSE(manifest_from_json("null", "m"));
  EXPECT_FALSE(manifest_from_json(std::string(1000000, '['), "m"));
}

TEST(Manifest, StateMustBeAnObjectThatCanBeReadBack) {
  Manifest manifest = sample();
  for (const std::string& bad : {std::string(""), std::string("3"), std::string("{"), std::string("{\"a\": 1e999}"),
                                 "{\"a\":" + std::string(40, '[') + std::string(40, ']') + "}"}) {
    manifest.state_json = bad;
    EXPECT_FALSE(to_json(manifest)) << bad;
  }
  manifest.state_json = "{\"a\":" + std::string(30, '[') + std::string(30, ']') + "}";
  auto text = to_json(manifest);
  ASSERT_TRUE(text);
  auto read = manifest_from_json(*text, "m");
  ASSERT_TRUE(read) << read.error().what;
  EXPECT_EQ(read->state_json, manifest.state_json);
}

TEST(RankPart, ComesBack) {
  RankPart part{{{"a", 1, 2}, {"b", 3, UINT64_MAX}}, {"w", "v"}, 12};
  auto read = rank_part_from_json(to_json(part), "p");
  ASSERT_TRUE(read) << read.error().what;
  EXPECT_EQ(*read, part);
  EXPECT_FALSE(rank_part_from_json(R"({"files": [], "weights": [3], "weight_bytes": 0})", "p"));
  EXPECT_FALSE(rank_part_from_json(R"({"files": [3], "weights": [], "weight_bytes": 0})", "p"));
  EXPECT_FALSE(rank_part_from_json(R"({"files": [], "weights": [], "weight_bytes": -1})", "p"));
}

TEST(Names, OfSteps) {
  EXPECT_EQ(step_folder(100), "step-00000100");
  EXPECT_EQ(step_folder(1234567890123), "step-1234567890123");
  EXPECT_EQ(step_of_folder("step-00000100"), 100);
  EXPECT_EQ(step_of_folder("step-1234567890123"), 1234567890123);
  for (const char* other : {"step-100", "step-", "step--0000001", "step-000000100", "step-0000010x", ".step-00000100",
                            "step-99999999999999999999", "steps"})
    EXPECT_EQ(step_of_folder(other), std::nullopt) << other;
  EXPECT_EQ(shard_file("model", 0, 2), "model-00001-of-00002.safetensors");
}

}  // namespace
}  // namespace yoke
