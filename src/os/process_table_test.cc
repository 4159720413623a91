#include "os/process_table.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include "os/testing.h"

namespace yoke {
namespace {

TEST(ProcessTable, FromAFolder) {
  TestFolder proc;
  proc.write("12/stat", "12 (sh) S 1 12 12 0 -1");
  proc.write("13/stat", "13 (a) name (x)) D 12 12 12 0 -1");
  proc.write("14/stat", "14 (");                // cut short
  proc.write("self/stat", "15 (sh) S 12 0 0");  // not a number
  proc.write("13/environ", std::string("A=1\0AB=2\0C=\0", 12));
  EXPECT_THAT(process_ids(proc.path()), testing::UnorderedElementsAre(12, 13, 14));
  auto info = process_info(13, proc.path());
  ASSERT_TRUE(info);
  EXPECT_EQ(info->name, "a) name (x)");
  EXPECT_EQ(info->state, 'D');
  EXPECT_EQ(info->parent, 12);
  EXPECT_FALSE(process_info(14, proc.path()));
  EXPECT_FALSE(process_info(99, proc.path()));
  auto children = children_of(12, proc.path());
  ASSERT_EQ(children.size(), 1u);
  EXPECT_EQ(children[0].pid, 13);
  EXPECT_EQ(process_variable(13, "A", proc.path()), "1");
  EXPECT_EQ(process_variable(13, "AB", proc.path()), "2");
  EXPECT_EQ(process_variable(13, "C", proc.path()), "");
  EXPECT_EQ(process_variable(13, "B", proc.path()), std::nullopt);
  EXPECT_EQ(process_variable(12, "A", proc.path()), std::nullopt);
}

TEST(ProcessTable, Real) {
  EXPECT_THAT(process_ids(), testing::Contains(::getpid()));
  auto self = process_info(::getpid());
  ASSERT_TRUE(self);
  EXPECT_EQ(self->parent, ::getppid());
  EXPECT_NE(process_variable(::getpid(), "PATH"), std::nullopt);
}

}  // namespace
}  // namespace yoke
