#include "os/paged_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <csignal>
#include <cstring>
#include <random>

#include "os/file.h"

namespace yoke {
namespace {

using ::testing::HasSubstr;

struct Memory {
  Memory(std::size_t buffers, std::size_t size) : bytes(buffers, std::vector<std::byte>(size)) {}
  std::vector<std::span<std::byte>> spans() {
    std::vector<std::span<std::byte>> all;
    for (auto& b : bytes) all.emplace_back(b);
    return all;
  }
  std::vector<std::vector<std::byte>> bytes;
};

TEST(PagedFile, KeepsWhatWasWritten) {
  TemporaryFolder folder;
  std::mt19937 random(7);
  std::vector<std::size_t> sizes{5000, 0, 1, 4096, 70000, 12, 8192, 300};
  std::vector<std::vector<std::byte>> model;
  for (std::size_t size : sizes) model.emplace_back(size);
  for (std::size_t buffers : {2u, 3u, 5u, 20u}) {
    for (auto& page : model) std::fill(page.begin(), page.end(), std::byte{0});
    Memory memory(buffers, 70000);
    auto file = PagedFile::create(folder.path(), sizes, memory.spans());
    ASSERT_TRUE(file.has_value()) << file.error().what;
    for (int round = 0; round < 400; ++round) {
      std::size_t page = random() % sizes.size();
      if (random() % 2 == 0) (*file)->expect(random() % sizes.size());
      bool whole = random() % 4 == 0;
      auto bytes = whole ? (*file)->open_new(page) : (*file)->open(page);
      ASSERT_TRUE(bytes.has_value()) << bytes.error().what;
      ASSERT_EQ(bytes->size(), sizes[page]);
      ASSERT_TRUE(whole || std::equal(bytes->begin(), bytes->end(), model[page].begin())) << "page " << page;
      bool change = whole || random() % 2 == 0;
      if (change)
        for (std::size_t i = 0; i < bytes->size(); ++i)
          model[page][i] = (*bytes)[i] = static_cast<std::byte>(random() & 255);
      (*file)->close(page, change);
    }
  }
  EXPECT_TRUE(list_folder(folder.path())->empty());
}

TEST(PagedFile, SeveralPagesOpen) {
  TemporaryFolder folder;
  Memory memory(3, 8);
  auto file = PagedFile::create(folder.path(), {8, 8, 8, 8}, memory.spans());
  ASSERT_TRUE(file.has_value());
  auto a = (*file)->open(0), b = (*file)->open(3);
  (*a)[0] = std::byte{1};
  (*b)[0] = std::byte{2};
  (*file)->close(0, true);
  for (std::size_t page : {1u, 2u, 0u}) {  // the third buffer has to do
    auto c = (*file)->open(page);
    EXPECT_EQ((*c)[0], static_cast<std::byte>(page == 0));
    (*file)->close(page, false);
  }
  EXPECT_EQ((*b)[0], std::byte{2});
  (*file)->close(3, true);
}

TEST(PagedFile, ExpectedPagesAreReadAhead) {
  TemporaryFolder folder;
  Memory memory(3, 4);
  auto file = PagedFile::create(folder.path(), {4, 4, 4, 4, 4, 4}, memory.spans());
  ASSERT_TRUE(file.has_value());
  for (std::size_t page = 0; page < 6; ++page) {
    auto bytes = (*file)->open(page);
    std::memset(bytes->data(), static_cast<int>(page) + 1, 4);
    (*file)->close(page, true);
  }
  for (std::size_t page = 0; page < 6; ++page) {
    if (page + 1 < 6) (*file)->expect(page + 1);
    auto bytes = (*file)->open(page);
    EXPECT_EQ((*bytes)[3], static_cast<std::byte>(page + 1));
    (*file)->close(page, false);
  }
}

TEST(PagedFile, NoRoomIsAnErrorAtTheStart) {
  TemporaryFolder folder;
  rlimit old{};
  getrlimit(RLIMIT_FSIZE, &old);
  auto handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit small{4096, old.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  Memory memory(2, 10000);
  auto file = PagedFile::create(folder.path(), {10000}, memory.spans());
  auto scratch = ScratchMapping::create(folder.path(), 10000);
  setrlimit(RLIMIT_FSIZE, &old);
  std::signal(SIGXFSZ, handler);
  ASSERT_FALSE(file.has_value());
  EXPECT_EQ(file.error().kind, ErrorKind::environment);
  EXPECT_THAT(file.error().what, HasSubstr(folder.path()));
  EXPECT_FALSE(file.error().hint.empty());
  EXPECT_FALSE(scratch.has_value());
}

TEST(PagedFile, NoFolder) {
  Memory memory(2, 8);
  auto file = PagedFile::create("/proc/nowhere", {8}, memory.spans());
  ASSERT_FALSE(file.has_value());
  EXPECT_THAT(file.error().what, HasSubstr("/proc/nowhere"));
}

TEST(ScratchMapping, KeepsWhatWasWritten) {
  TemporaryFolder folder;
  auto scratch = ScratchMapping::create(folder.path(), 100000);
  ASSERT_TRUE(scratch.has_value()) << scratch.error().what;
  for (std::size_t i = 0; i < 100000; ++i) scratch->bytes()[i] = static_cast<std::byte>(i % 251);
  scratch->release();
  for (std::size_t i = 0; i < 100000; ++i) ASSERT_EQ(scratch->bytes()[i], static_cast<std::byte>(i % 251));
  EXPECT_TRUE(list_folder(folder.path())->empty());
}

}  // namespace
}  // namespace yoke
