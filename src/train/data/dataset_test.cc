#include "train/data/dataset.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <thread>

#include "os/file.h"
#include "train/data/file_lock.h"
#include "train/data/token_cache.h"

namespace yoke {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::string text_of(const Tokens& tokens) {
  std::vector<std::int64_t> values(tokens.size());
  tokens.read(0, values);
  return {values.begin(), values.end()};
}

class DatasetTest : public ::testing::Test {
 protected:
  DataSpec spec(std::vector<std::string> train) const {
    DataSpec spec;
    for (auto& pattern : train) spec.train.push_back(folder / pattern);
    spec.sequence = 4;
    spec.validation_share = 0;
    spec.cache = folder / "cache";
    return spec;
  }
  void write(const std::string& name, const std::string& content) const {
    const std::filesystem::path path = folder / name;
    std::filesystem::create_directories(path.parent_path());
    ASSERT_TRUE(write_file_atomically(path, content));
  }
  std::vector<std::string> cached(const std::string& ending) const {
    std::vector<std::string> paths;
    for (const auto& name : list_folder(folder / "cache").value_or(std::vector<std::string>()))
      if (name.ends_with(ending)) paths.push_back(folder / ("cache/" + name));
    return paths;
  }
  std::string error(const DataSpec& data) const {
    const auto dataset = open_dataset(data);
    return dataset ? "" : dataset.error().what;
  }
  // Later than it was, whatever the resolution of the file system's clock.
  static void touch(const std::string& path) {
    std::filesystem::last_write_time(path, std::filesystem::last_write_time(path) + std::chrono::seconds(1));
  }

  TemporaryFolder folder;
};

TEST_F(DatasetTest, FilesAreJoinedInTheOrderOfTheList) {
  write("b/2.txt", "two ");
  write("b/1.txt", "one ");
  write("b/deep/3.txt", "three ");
  write("a.txt", "zero ");
  write("empty.txt", "");
  const auto dataset = open_dataset(spec({"b/**/*.txt", "empty.txt", "a.txt", "b/2.txt"}));
  ASSERT_TRUE(dataset) << dataset.error().what;
  EXPECT_EQ(text_of(dataset->train), "one two three zero ");
  EXPECT_EQ(dataset->train.vocab(), 256U);
  EXPECT_FALSE(dataset->validation);
  EXPECT_THAT(dataset->notes, IsEmpty());
  EXPECT_THAT(dataset->description, HasSubstr("5 text files, 19 tokens (bytes)"));
}

TEST_F(DatasetTest, TextIsTokenisedOnceUntilItChanges) {
  write("a.txt", "some text");
  ASSERT_TRUE(open_dataset(spec({"a.txt"})));
  const auto first = cached(".bin");
  ASSERT_EQ(first.size(), 1U);
  // What is in the cache is what is read: another text of the same length there, well formed, shows it.
  TokenWriter other(256);
  other.append(std::vector<std::uint32_t>(9, 'x'));
  ASSERT_TRUE(other.write(first[0]));
  EXPECT_EQ(text_of(open_dataset(spec({"a.txt"}))->train), "xxxxxxxxx");

  write("a.txt", "longer text");
  EXPECT_EQ(text_of(open_dataset(spec({"a.txt"}))->train), "longer text");
  touch(folder / "a.txt");
  EXPECT_EQ(text_of(open_dataset(spec({"a.txt"}))->train), "longer text");
  EXPECT_EQ(cached(".bin").size(), 3U);
}

TEST_F(DatasetTest, AnotherTokeniserMakesAnotherFile) {
  write("a.txt", "for x in range(10):\n    return x\n");
  DataSpec data = spec({"a.txt"});
  const auto bytes = open_dataset(data).value();
  data.tokenizer = YOKE_SOURCE_DIR "/tests/golden/tokenizers/gpt2.json";
  const auto bpe = open_dataset(data).value();
  EXPECT_LT(bpe.train.size(), bytes.train.size());
  EXPECT_EQ(bpe.train.vocab(), 502U);
  EXPECT_EQ(cached(".bin").size(), 2U);
}

TEST_F(DatasetTest, TokenFilesAndTextsMix) {
  write("1.txt", "abc");
  write("2.bin", std::string("\1\0\2\3", 4));
  TokenWriter writer(1000);
  writer.append(std::vector<std::uint32_t>{7, 999});
  ASSERT_TRUE(writer.write(folder / "3.bin"));
  write("4.txt", "d");
  const auto dataset = open_dataset(spec({"*.txt", "*.bin"})).value();
  EXPECT_EQ(text_of(dataset.train.part(0, 4)), "abcd");
  std::vector<std::int64_t> tokens(4);
  dataset.train.read(4, tokens);
  EXPECT_THAT(tokens, ElementsAre(1, 770, 7, 999));
  EXPECT_EQ(dataset.train.vocab(), 1000U);
  EXPECT_THAT(dataset.description, HasSubstr("2 text files and 2 token files"));
}

TEST_F(DatasetTest, TokenFilesNeedNoTokeniserAndNoCache) {
  write("1.bin", std::string("\1\0\2\0\3\0\4\0\5\0", 10));
  DataSpec data = spec({"1.bin"});
  data.tokenizer = "nowhere.json";
  data.cache = "/proc/no/folder/can/be/here";
  EXPECT_EQ(open_dataset(data).value().train.vocab(), 6U);
}

TEST_F(DatasetTest, ATokenFileIsCheckedOncePerVersion) {
  TokenWriter writer(1000);
  writer.append(std::vector<std::uint32_t>(100, 7));
  const std::string path = folder / "1.bin";
  ASSERT_TRUE(writer.write(path));
  const TokenCache cache(folder / "cache");
  EXPECT_EQ(cache.open(path)->vocab, 1000U);
  EXPECT_EQ(cached(".checked").size(), 1U);

  const auto time = std::filesystem::last_write_time(path);
  std::string damaged = read_file(path).value();
  damaged.back() ^= 1;
  write("1.bin", damaged);
  std::filesystem::last_write_time(path, time);
  EXPECT_TRUE(cache.open(path));  // the same size and time: not read again
  touch(path);
  EXPECT_THAT(cache.open(path).error().what, HasSubstr("checksum"));
  EXPECT_THAT(cache.open(path).error().what, HasSubstr(path));
  for (const auto& stamp : cached(".checked")) ASSERT_TRUE(write_file_atomically(stamp, "nonsense"));
  std::filesystem::last_write_time(path, time);
  EXPECT_FALSE(cache.open(path));  // a stamp that says nothing counts for nothing
}

TEST_F(DatasetTest, ADamagedCacheIsMadeAgainWithANote) {
  write("a.txt", "some text");
  ASSERT_TRUE(open_dataset(spec({"a.txt"})));
  const std::string path = cached(".bin").at(0);
  const std::string good = read_file(path).value();
  std::string flipped = good;
  flipped[70] ^= 4;
  for (const std::string& damaged : {good.substr(0, 70), good.substr(0, 10), std::string(), flipped}) {
    ASSERT_TRUE(write_file_atomically(path, damaged));
    touch(path);
    const auto dataset = open_dataset(spec({"a.txt"}));
    ASSERT_TRUE(dataset) << dataset.error().what;
    EXPECT_EQ(text_of(dataset->train), "some text");
    EXPECT_THAT(dataset->notes, ElementsAre(HasSubstr("made it again")));
    EXPECT_EQ(read_file(path).value(), good);
  }
}

TEST_F(DatasetTest, SeveralAtOnceMakeOneFile) {
  std::string text;
  for (int i = 0; i < 20000; ++i) text += "line " + std::to_string(i) + "\n";
  write("a.txt", text);
  std::vector<std::string> texts(6);
  std::vector<std::thread> ranks;
  for (auto& result : texts)
    ranks.emplace_back([&] {
      const auto dataset = open_dataset(spec({"a.txt"}));
      if (dataset && dataset->notes.empty()) result = text_of(dataset->train);
    });
  for (auto& rank : ranks) rank.join();
  for (const auto& result : texts) EXPECT_TRUE(result == text);
  EXPECT_EQ(cached(".bin").size(), 1U);
  EXPECT_THAT(cached(".tmp"), IsEmpty());
}

TEST_F(DatasetTest, OneThatIsKilledAtWorkLeavesNoHarm) {
  write("a.txt", "some text");
  ASSERT_TRUE(open_dataset(spec({"a.txt"})));
  const std::string path = cached(".bin").at(0), lock = cached(".lock").at(0);
  ASSERT_TRUE(remove_tree(path));
  ASSERT_TRUE(write_file_atomically(path + ".1-0.tmp", "half a fi"));
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto held = FileLock::wait_for(lock);
    (void)!::write(ready[1], "x", 1);
    while (true) ::pause();
  }
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  ::close(ready[0]);
  ::close(ready[1]);
  std::thread other([&] { EXPECT_EQ(text_of(open_dataset(spec({"a.txt"}))->train), "some text"); });
  ::kill(child, SIGKILL);
  other.join();
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_THAT(cached(".tmp"), IsEmpty());
}

TEST_F(DatasetTest, ValidationIsTheLastShare) {
  std::string text;
  for (int i = 0; i < 1003; ++i) text += static_cast<char>('a' + i % 26);
  write("a.txt", text);
  DataSpec data = spec({"a.txt"});
  data.validation_share = 0.1;  // 100 tokens: the cut is at the multiple of 4 at or below 903
  const auto dataset = open_dataset(data).value();
  EXPECT_EQ(text_of(dataset.train), text.substr(0, 900));
  EXPECT_EQ(text_of(*dataset.validation), text.substr(900));
  EXPECT_THAT(dataset.description, HasSubstr("for validation"));

  data.validation_share = 0.004;  // 4 tokens: one too few
  const auto without = open_dataset(data).value();
  EXPECT_EQ(without.train.size(), 1003U);
  EXPECT_FALSE(without.validation);
  EXPECT_THAT(without.notes, ElementsAre(HasSubstr("no validation")));
}

TEST_F(DatasetTest, ValidationMayHaveItsOwnFiles) {
  write("a.txt", "train train");
  write("b.txt", "validate");
  DataSpec data = spec({"a.txt"});
  data.validation_share = 0.5;
  data.validation = {folder / "b.txt"};
  const auto dataset = open_dataset(data).value();
  EXPECT_EQ(text_of(dataset.train), "train train");
  EXPECT_EQ(text_of(*dataset.validation), "validate");
  data.validation = {folder / "c.txt"};
  EXPECT_THAT(error(data), HasSubstr("no file matches data.validation = \"" + data.validation[0] + "\""));
  write("b.txt", "tiny");
  data.validation = {folder / "b.txt"};
  EXPECT_THAT(error(data), HasSubstr("data.validation holds 4 tokens; a sequence of 4 needs 5"));
}

TEST_F(DatasetTest, WhatIsWrongIsSaid) {
  DataSpec data = spec({"*.txt"});
  EXPECT_THAT(error(data), HasSubstr("no file matches data.train = \"" + data.train[0] + "\""));
  EXPECT_THAT(error(spec({})), HasSubstr("data.train"));
  write("a.txt", "four");
  EXPECT_THAT(error(data), HasSubstr("data.train holds 4 tokens; a sequence of 4 needs 5"));
  write("a.txt", "fourfour");
  data.validation_share = 0.9;
  EXPECT_THAT(error(data), HasSubstr("there are 0 tokens"));
  data.tokenizer = "odd";
  EXPECT_THAT(error(data), HasSubstr("data.tokenizer = \"odd\""));
  write("b.bin", "odd");
  EXPECT_THAT(error(spec({"b.bin"})), HasSubstr(folder / "b.bin"));
  data = spec({"a.txt"});
  data.cache = "/proc/no/folder/can/be/here";
  EXPECT_THAT(error(data), HasSubstr("/proc/no/folder"));
}

TEST_F(DatasetTest, TheCacheFolderFollowsTheEnvironment) {
  write("a.txt", "some text");
  DataSpec data = spec({"a.txt"});
  data.cache.clear();
  const char* before = std::getenv("XDG_CACHE_HOME");
  const std::string kept = before == nullptr ? "" : before;
  ASSERT_EQ(::setenv("XDG_CACHE_HOME", (folder / "xdg").c_str(), 1), 0);
  EXPECT_TRUE(open_dataset(data));
  EXPECT_FALSE(expand_glob(folder / "xdg/yoke/tokens/*.bin").value().empty());
  before == nullptr ? ::unsetenv("XDG_CACHE_HOME") : ::setenv("XDG_CACHE_HOME", kept.c_str(), 1);
}

}  // namespace
}  // namespace yoke
