#include "base/directory_names.h"

#include <fcntl.h>
#include <unistd.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temporary_directory.h"

namespace terrace {
namespace {

using testing::IsEmpty;
using testing::UnorderedElementsAre;

class DirectoryNamesTest : public testing::Test {
 protected:
  DirectoryNamesTest()
      : fd_(open(directory_.path().c_str(),
                 O_RDONLY | O_DIRECTORY | O_CLOEXEC)) {
    EXPECT_GE(fd_, 0);
  }
  ~DirectoryNamesTest() override { close(fd_); }

  TemporaryDirectory directory_;
  const int fd_;
};

TEST_F(DirectoryNamesTest, AnEmptyDirectoryHasNone) {
  EXPECT_THAT(NamesIn(fd_), IsEmpty());
}

TEST_F(DirectoryNamesTest, FilesFoldersAndHiddenOnesAreNamedButNotBelow) {
  directory_.Write("file", "");
  directory_.Write(".hidden", "");
  directory_.Write("..two dots", "");
  directory_.Write("folder/below", "");
  EXPECT_THAT(NamesIn(fd_),
              UnorderedElementsAre("file", ".hidden", "..two dots", "folder"));
}

TEST_F(DirectoryNamesTest, EachCallListsFromTheStart) {
  directory_.Write("first", "");
  EXPECT_THAT(NamesIn(fd_), UnorderedElementsAre("first"));
  directory_.Write("second", "");
  EXPECT_THAT(NamesIn(fd_), UnorderedElementsAre("first", "second"));
}

TEST_F(DirectoryNamesTest, NoDescriptorIsKept) {
  const int before = dup(fd_);
  close(before);
  NamesIn(fd_);
  const int after = dup(fd_);
  close(after);
  EXPECT_EQ(after, before);
}

TEST_F(DirectoryNamesTest, WhatCannotBeReadHasNone) {
  const std::string path = directory_.Write("file", "");
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  ASSERT_GE(file, 0);
  EXPECT_THAT(NamesIn(file), IsEmpty());
  close(file);
  EXPECT_THAT(NamesIn(-1), IsEmpty());
}

}  // namespace
}  // namespace terrace
