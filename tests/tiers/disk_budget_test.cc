// A disk path takes no more of its disk than its budget.
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/io_fault.h"
#include "gtest/gtest.h"
#include "tests/support/loop_device.h"
#include "tests/support/own_child.h"
#include "tests/support/temporary_directory.h"
#include "tests/tiers/grown_extent.h"
#include "tiers/disk/disk_file.h"

namespace terrace {
namespace {

constexpr int64_t kBudgetMiB = 1 << 20;
constexpr int64_t kBlock = 4096;

std::unique_ptr<DiskFile> MustOpen(const std::string& path,
                                   int64_t budget_bytes) {
  auto file = OpenDiskFile({.path = path, .budget_bytes = budget_bytes});
  EXPECT_TRUE(file.ok()) << file.status();
  return file.ok() ? *std::move(file) : nullptr;
}

int64_t SizeOf(const DiskFile& file) {
  struct stat status = {};
  EXPECT_EQ(fstat(file.fd(), &status), 0);
  return status.st_size;
}

// Takes blocks until it is refused; their bytes.
int64_t Fill(DiskFile& file, absl::Status* refused) {
  int64_t bytes = 0;
  while (true) {
    const absl::StatusOr<Extent> extent = Take(file, 3 * kBlock);
    if (!extent.ok()) {
      *refused = extent.status();
      break;
    }
    bytes += extent->size_bytes;
  }
  while (Take(file, kBlock).ok()) bytes += kBlock;
  return bytes;
}

TEST(DiskBudgetTest, ADirectorysFileGrowsToItsBudgetAndNoFurther) {
  TemporaryDirectory directory;
  // No multiple of what it grows by, nor of a block.
  constexpr int64_t kBudget = 3 * kBudgetMiB + 5 * kBlock + 77;
  const auto file = MustOpen(directory.path(), kBudget);
  ASSERT_NE(file, nullptr);
  absl::Status refused;
  EXPECT_EQ(Fill(*file, &refused), 3 * kBudgetMiB + 5 * kBlock);
  EXPECT_EQ(SizeOf(*file), 3 * kBudgetMiB + 5 * kBlock);
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_NE(refused.message().find(directory.path()), std::string::npos);
  EXPECT_NE(refused.message().find("of the budget of 3166208"),
            std::string::npos)
      << refused;
  EXPECT_EQ(IoFaultOf(refused).error, EDQUOT);
}

TEST(DiskBudgetTest, WhatIsFreedMayBeTakenAgain) {
  TemporaryDirectory directory;
  const auto file = MustOpen(directory.path(), 2 * kBudgetMiB);
  ASSERT_NE(file, nullptr);
  const absl::StatusOr<Extent> first = Take(*file, 2 * kBudgetMiB);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_FALSE(Take(*file, kBlock).ok());
  file->Free(*first);
  EXPECT_TRUE(Take(*file, kBudgetMiB).ok());
  EXPECT_TRUE(Take(*file, kBudgetMiB).ok());
  EXPECT_FALSE(Take(*file, kBlock).ok());
}

TEST(DiskBudgetTest, TheMarkOfAGivenFileIsNotOfItsBudget) {
  TemporaryDirectory directory;
  const std::string path = directory.path() + "/given";
  std::fclose(std::fopen(path.c_str(), "w"));
  const auto file = MustOpen(path, kBudgetMiB);
  ASSERT_NE(file, nullptr);
  absl::Status refused;
  EXPECT_EQ(Fill(*file, &refused), kBudgetMiB);
  EXPECT_EQ(SizeOf(*file), kBudgetMiB + kBlock);
  EXPECT_NE(refused.message().find("of the budget of 1048576"),
            std::string::npos)
      << refused;
  ASSERT_TRUE(file->Remove().ok());
  unlink(path.c_str());
}

// A killed job leaves its file as it is: longer than the next one's budget.
TEST(DiskBudgetTest, WhatAKilledJobLeftOfAGivenFileIsNotBeyondTheNextBudget) {
  TemporaryDirectory directory;
  const std::string path = directory.Write("given", "");
  ASSERT_TRUE(InChild([&]() -> bool {
    const auto file = OpenDiskFile({.path = path});
    const bool is_taken = file.ok() && Take(**file, 5 * kBudgetMiB).ok();
    _exit(is_taken ? 0 : 1);  // without closing it
  }));
  struct stat left = {};
  ASSERT_EQ(stat(path.c_str(), &left), 0);
  ASSERT_GE(left.st_size, 5 * kBudgetMiB + kBlock);
  const auto file = MustOpen(path, kBudgetMiB);
  ASSERT_NE(file, nullptr);
  EXPECT_EQ(SizeOf(*file), kBlock);
  absl::Status refused;
  EXPECT_EQ(Fill(*file, &refused), kBudgetMiB);
  EXPECT_EQ(SizeOf(*file), kBudgetMiB + kBlock);
}

TEST(DiskBudgetTest, ARefusedBudgetLeavesAnEmptyFileEmpty) {
  TemporaryDirectory directory;
  const std::string path = directory.Write("given", "");
  for (const int64_t budget : {kBlock - 1, INT64_MAX}) {
    const absl::Status status =
        OpenDiskFile({.path = path, .budget_bytes = budget}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    struct stat after = {};
    ASSERT_EQ(stat(path.c_str(), &after), 0);
    EXPECT_EQ(after.st_size, 0);
  }
}

TEST(DiskBudgetTest, MoreThanTheFileSystemHasIsRefused) {
  TemporaryDirectory directory;
  struct statvfs found = {};
  ASSERT_EQ(statvfs(directory.path().c_str(), &found), 0);
  const auto all = static_cast<int64_t>(found.f_blocks * found.f_frsize);
  const absl::Status status =
      OpenDiskFile({.path = directory.path(), .budget_bytes = all + 1})
          .status();
  EXPECT_EQ(status, absl::InvalidArgumentError(absl::StrCat(
                        "path '", directory.path(), "': a budget of ", all + 1,
                        " bytes, and there are ", all)));
  EXPECT_TRUE(directory.Entries().empty());
  EXPECT_TRUE(
      OpenDiskFile({.path = directory.path(), .budget_bytes = all}).ok());
}

TEST(DiskBudgetTest, LessThanABlockIsRefused) {
  TemporaryDirectory directory;
  for (const int64_t budget : {int64_t{-1}, int64_t{1}, kBlock - 1}) {
    const absl::Status status =
        OpenDiskFile({.path = directory.path(), .budget_bytes = budget})
            .status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_NE(status.message().find(absl::StrCat("a budget of ", budget, " ")),
              std::string::npos)
        << status;
  }
}

TEST(DiskBudgetTest, ADeviceGivesNoMoreThanItsBudget) {
  const LoopDevice device(16 * kBudgetMiB);
  if (!device.ok()) GTEST_SKIP() << device.reason();
  const absl::Status beyond =
      OpenDiskFile({.path = device.path(), .budget_bytes = 16 * kBudgetMiB})
          .status();
  EXPECT_TRUE(absl::IsInvalidArgument(beyond)) << beyond;
  EXPECT_NE(beyond.message().find("and there are 14680064"), std::string::npos)
      << beyond;
  const auto file = MustOpen(device.path(), 3 * kBudgetMiB);
  ASSERT_NE(file, nullptr);
  absl::Status refused;
  EXPECT_EQ(Fill(*file, &refused), 3 * kBudgetMiB);
  EXPECT_NE(refused.message().find("of the budget of 3145728"),
            std::string::npos)
      << refused;
}

}  // namespace
}  // namespace terrace
