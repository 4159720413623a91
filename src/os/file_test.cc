#include "os/file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

namespace yoke {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::span<const std::byte> bytes_of(std::string_view text) { return std::as_bytes(std::span(text)); }

TEST(File, WritesReadsAndReplaces) {
  TemporaryFolder folder;
  std::string path = folder / "f";
  for (const std::string& content : {std::string("one"), std::string(), std::string(3 << 20, '\0') + "\xff"}) {
    ASSERT_TRUE(write_file_atomically(path, content));
    EXPECT_EQ(*read_file(path), content);
    EXPECT_EQ(*file_size(path), content.size());
    std::string pieces;
    ASSERT_TRUE(read_pieces(path, [&](std::span<const std::byte> piece) {
      EXPECT_LE(piece.size(), std::size_t{1} << 20);
      pieces.append(reinterpret_cast<const char*>(piece.data()), piece.size());
    }));
    EXPECT_EQ(pieces, content);
    auto mapped = MappedFile::open(path, Access::sequential);
    ASSERT_TRUE(mapped) << mapped.error().what;
    EXPECT_TRUE(std::ranges::equal(mapped->bytes(), bytes_of(content)));
  }
  EXPECT_THAT(*list_folder(folder.path()), ElementsAre("f"));
}

TEST(File, ReadsFilesWhoseSizeIsNotKnown) {
  auto text = read_file("/proc/self/status");
  ASSERT_TRUE(text);
  EXPECT_THAT(*text, HasSubstr("Pid:"));
}

TEST(File, ErrorsNameThePathAndTheReason) {
  TemporaryFolder folder;
  std::string absent = folder / "no/such";
  auto expect = [](const Error& error, const std::string& path, const std::string& why) {
    EXPECT_EQ(error.kind, ErrorKind::environment);
    EXPECT_THAT(error.what, HasSubstr(path));
    EXPECT_THAT(error.what, HasSubstr(why));
  };
  expect(read_file(absent).error(), absent, "No such file or directory");
  expect(read_file(folder.path()).error(), folder.path(), "Is a directory");
  expect(MappedFile::open(absent).error(), absent, "No such file or directory");
  expect(MappedFile::open(folder.path()).error(), folder.path(), "Is a directory");
  expect(MappedFile::open("/dev/null").error(), "/dev/null", "Invalid argument");
  expect(write_file_atomically(absent, "x").error(), absent, "No such file or directory");
  expect(list_folder(absent).error(), absent, "No such file or directory");
  expect(file_size(absent).error(), absent, "No such file or directory");
  expect(rename_path(absent, folder / "b").error(), absent, "No such file or directory");
  expect(read_pieces(absent, [](auto) {}).error(), absent, "No such file or directory");
  ASSERT_TRUE(write_file_atomically(folder / "f", "x"));
  expect(make_folders(folder / "f/g").error(), folder / "f/g", "Not a directory");
  // A folder cannot be replaced by a file; what was written beside it is gone.
  ASSERT_TRUE(make_folders(folder / "full/x"));
  expect(write_file_atomically(folder / "full", "x").error(), folder / "full", "Is a directory");
  EXPECT_THAT(*list_folder(folder.path()), ElementsAre("f", "full"));
}

TEST(File, NothingIsSeenBeforeCommit) {
  TemporaryFolder folder;
  ASSERT_TRUE(write_file_atomically(folder / "f", "old"));
  {
    auto file = OutputFile::create(folder / "f", 3);
    ASSERT_TRUE(file);
    OutputFile moved = *std::move(file);
    ASSERT_TRUE(moved.write(bytes_of("ne")));
    EXPECT_EQ(*read_file(folder / "f"), "old");
  }
  EXPECT_THAT(*list_folder(folder.path()), ElementsAre("f"));
  auto file = OutputFile::create(folder / "f", 3);
  ASSERT_TRUE(file->write(bytes_of("ne")) && file->write(bytes_of("w")) && file->commit());
  EXPECT_EQ(*read_file(folder / "f"), "new");
}

TEST(File, ManyWritersOfOnePathLeaveOneWhole) {
  TemporaryFolder folder;
  std::vector<std::thread> writers;
  for (char letter : {'a', 'b', 'c', 'd'})
    writers.emplace_back([&folder, letter] {
      for (int i = 0; i < 5; ++i) EXPECT_TRUE(write_file_atomically(folder / "f", std::string(10000, letter)));
    });
  for (std::thread& writer : writers) writer.join();
  std::string content = *read_file(folder / "f");
  EXPECT_EQ(content, std::string(10000, content[0]));
  EXPECT_THAT(*list_folder(folder.path()), ElementsAre("f"));
}

TEST(File, NoPermission) {
  TemporaryFolder folder;
  ASSERT_TRUE(write_file_atomically(folder / "f", "old"));
  ASSERT_EQ(::chmod(folder.path().c_str(), 0555), 0);
  pid_t child = ::fork();
  if (child == 0) {
    if (::geteuid() == 0 && ::setuid(65534) != 0) ::_exit(2);  // root may write anywhere
    auto written = write_file_atomically(folder / "f", "new");
    bool told = !written && written.error().kind == ErrorKind::environment &&
                written.error().what == "cannot create " + folder / "f" + ": Permission denied";
    ::_exit(told && *read_file(folder / "f") == "old" ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  ASSERT_EQ(::chmod(folder.path().c_str(), 0755), 0);
}

TEST(File, MappingsOutliveTheirFileAndMove) {
  TemporaryFolder folder;
  ASSERT_TRUE(write_file_atomically(folder / "a", "first"));
  ASSERT_TRUE(write_file_atomically(folder / "b", "second"));
  auto a = MappedFile::open(folder / "a");
  auto b = MappedFile::open(folder / "b", Access::random);
  ASSERT_TRUE(a && b);
  ASSERT_TRUE(remove_tree(folder / "b"));
  ASSERT_TRUE(write_file_atomically(folder / "a", "1"));
  EXPECT_TRUE(std::ranges::equal(a->bytes(), bytes_of("first")));
  *a = *std::move(b);
  EXPECT_TRUE(std::ranges::equal(a->bytes(), bytes_of("second")));
}

TEST(File, Folders) {
  TemporaryFolder folder;
  ASSERT_TRUE(make_folders(folder / "a/b/c"));
  ASSERT_TRUE(make_folders(folder / "a/b/c"));
  ASSERT_TRUE(make_folders(folder / "a/.hidden"));
  ASSERT_TRUE(write_file_atomically(folder / "a/Z", ""));
  EXPECT_THAT(*list_folder(folder / "a"), ElementsAre(".hidden", "Z", "b"));
  EXPECT_TRUE(is_folder(folder / "a/b"));
  EXPECT_FALSE(is_folder(folder / "a/Z"));
  EXPECT_TRUE(exists(folder / "a/Z"));
  // A link is removed, not what it points at.
  ASSERT_EQ(::symlink((folder / "a").c_str(), (folder / "link").c_str()), 0);
  ASSERT_TRUE(remove_tree(folder / "link"));
  EXPECT_TRUE(exists(folder / "a/Z"));
  ASSERT_TRUE(rename_path(folder / "a", folder / "d"));
  ASSERT_TRUE(sync_folder(folder.path()));
  ASSERT_TRUE(remove_tree(folder / "d"));
  ASSERT_TRUE(remove_tree(folder / "d"));
  EXPECT_THAT(*list_folder(folder.path()), IsEmpty());
}

TEST(File, TemporaryFoldersGo) {
  std::string path;
  {
    TemporaryFolder folder;
    path = folder.path();
    ASSERT_TRUE(make_folders(folder / "a/b"));
    EXPECT_NE(TemporaryFolder().path(), path);
  }
  EXPECT_FALSE(exists(path));
}

class Glob : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const char* name : {"b.py", "a.py", "a.txt", ".h.py", "p3.1/x.py", "p3.1/q/y.py", "p3.1/q/r/z.py",
                             "p3.1/.git/g.py", "p3.2/x.py", "odd[1].py", "d.py/inner.txt"}) {
      std::string path = folder_ / name;
      ASSERT_TRUE(make_folders(path.substr(0, path.rfind('/'))));
      ASSERT_TRUE(write_file_atomically(path, ""));
    }
    ASSERT_EQ(::symlink("p3.1", (folder_ / "link").c_str()), 0);
  }

  // Without the folder in front.
  std::vector<std::string> expand(const std::string& pattern) {
    auto found = expand_glob(folder_ / pattern);
    EXPECT_TRUE(found);
    for (std::string& path : *found) path = path.substr(folder_.path().size() + 1);
    return *found;
  }

  TemporaryFolder folder_;
};

TEST_F(Glob, InOneFolder) {
  EXPECT_THAT(expand("*.py"), ElementsAre("a.py", "b.py", "odd[1].py"));
  EXPECT_THAT(expand("?.[pt]*"), ElementsAre("a.py", "a.txt", "b.py"));
  EXPECT_THAT(expand(".*.py"), ElementsAre(".h.py"));
  EXPECT_THAT(expand("a.py"), ElementsAre("a.py"));
  EXPECT_THAT(expand("odd[1].py"), ElementsAre("odd[1].py"));
  EXPECT_THAT(expand("nothing*"), IsEmpty());
  EXPECT_THAT(expand("absent/*.py"), IsEmpty());
  EXPECT_THAT(expand("a.py/*"), IsEmpty());
  EXPECT_THAT(expand("p3.1"), IsEmpty());
  EXPECT_THAT(expand("p3.1/"), IsEmpty());
  EXPECT_THAT(*expand_glob(""), IsEmpty());
}

TEST_F(Glob, AcrossFolders) {
  EXPECT_THAT(expand("p3*/*.py"), ElementsAre("p3.1/x.py", "p3.2/x.py"));
  EXPECT_THAT(expand("link/*.py"), ElementsAre("link/x.py"));
  EXPECT_THAT(expand("p3*/**/*.py"), ElementsAre("p3.1/q/r/z.py", "p3.1/q/y.py", "p3.1/x.py", "p3.2/x.py"));
  EXPECT_THAT(expand("**/x.py"), ElementsAre("p3.1/x.py", "p3.2/x.py"));
  EXPECT_THAT(expand("p3.1/**"), ElementsAre("p3.1/q/r/z.py", "p3.1/q/y.py", "p3.1/x.py"));
  EXPECT_THAT(expand("**/**/q/**/**/*.py"), ElementsAre("p3.1/q/r/z.py", "p3.1/q/y.py"));
  EXPECT_THAT(expand("**/q/**/r/**/z.py"), ElementsAre("p3.1/q/r/z.py"));
}

TEST_F(Glob, FromTheWorkingFolder) {
  char* old = ::getcwd(nullptr, 0);
  ASSERT_NE(old, nullptr);
  ASSERT_EQ(::chdir(folder_.path().c_str()), 0);
  auto found = expand_glob("p3*/**/*.py");
  auto here = expand_glob("*.txt");
  EXPECT_EQ(::chdir(old), 0);
  ::free(old);
  EXPECT_THAT(*found, ElementsAre("p3.1/q/r/z.py", "p3.1/q/y.py", "p3.1/x.py", "p3.2/x.py"));
  EXPECT_THAT(*here, ElementsAre("a.txt"));
}

}  // namespace
}  // namespace yoke
