#include "tiers/disk/disk_file.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "tests/support/byte_units.h"
#include "tests/support/own_child.h"
#include "tests/support/temporary_directory.h"
#include "tests/tiers/grown_extent.h"

namespace terrace {
namespace {

std::unique_ptr<DiskFile> MustOpen(const std::string& directory) {
  absl::StatusOr<std::unique_ptr<DiskFile>> tier =
      OpenDiskFile({.path = directory});
  EXPECT_TRUE(tier.ok()) << tier.status();
  return tier.ok() ? *std::move(tier) : nullptr;
}

// What a killed job left, so that the disk is full.
void FillWithStaleState(const std::string& directory) {
  const std::string stale = directory + "/terrace-1-0123456789abcdef";
  ASSERT_EQ(mkdir(stale.c_str(), 0700), 0);
  close(open((stale + "/lock").c_str(), O_CREAT | O_RDWR, 0600));
  const int fd = open((stale + "/state").c_str(), O_CREAT | O_RDWR, 0600);
  const std::vector<char> block(4096, 'x');
  off_t size = 0;
  while (pwrite(fd, block.data(), block.size(), size) > 0) size += 4096;
  EXPECT_EQ(errno, ENOSPC);
  close(fd);
}

struct stat StatOf(int fd) {
  struct stat status = {};
  EXPECT_EQ(fstat(fd, &status), 0);
  return status;
}

// What every disk tier promises.
class DiskFileContract : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    tier_ = std::string(GetParam()) == "Memory"
                ? MakeMemoryDiskFile(0, 64 * kMiB)
                : MustOpen(directory_.path());
    ASSERT_NE(tier_, nullptr);
  }
  TemporaryDirectory directory_;
  std::unique_ptr<DiskFile> tier_;
};
INSTANTIATE_TEST_SUITE_P(All, DiskFileContract,
                         testing::Values("File", "Memory"),
                         [](const auto& param_info) {
                           return std::string(param_info.param);
                         });

TEST_P(DiskFileContract, ExtentsAreAlignedAndDoNotOverlap) {
  std::mt19937_64 random(3);
  std::vector<Extent> live;
  std::set<int64_t> pages;
  int64_t used = 0;
  for (int i = 0; i < 400; ++i) {
    if (live.size() > 20) {
      const Extent extent = live[random() % live.size()];
      tier_->Free(extent);
      used -= extent.size_bytes;
      for (int64_t at = extent.offset; at < extent.end(); at += 4096) {
        pages.erase(at);
      }
      std::erase(live, extent);
    }
    const auto size = static_cast<int64_t>(1 + random() % (kMiB + 99));
    const absl::StatusOr<Extent> extent = Take(*tier_, size);
    ASSERT_TRUE(extent.ok()) << extent.status();
    EXPECT_EQ(extent->offset % 4096, 0);
    EXPECT_EQ(extent->size_bytes, (size + 4095) / 4096 * 4096);
    for (int64_t at = extent->offset; at < extent->end(); at += 4096) {
      ASSERT_TRUE(pages.insert(at).second) << "offset " << at;
    }
    live.push_back(*extent);
    used += extent->size_bytes;
    EXPECT_EQ(tier_->used_bytes(), used);
    EXPECT_LE(extent->end(), tier_->capacity_bytes());
  }
}

TEST_P(DiskFileContract, FreedSpaceIsUsedAgain) {
  const Extent first = Take(*tier_, 3 * kMiB).value();
  const Extent second = Take(*tier_, kMiB).value();
  const int64_t capacity = tier_->capacity_bytes();
  tier_->Free(first);
  EXPECT_EQ(Take(*tier_, 3 * kMiB).value(), first);
  tier_->Free(second);
  EXPECT_EQ(tier_->capacity_bytes(), capacity);
}

TEST_P(DiskFileContract, ZeroAndTheImpossibleAreRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(Take(*tier_, 0).status()));
  const int64_t capacity = tier_->capacity_bytes();
  for (const int64_t size : {int64_t{1} << 60, INT64_MAX}) {
    const absl::Status status = Take(*tier_, size).status();
    EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
    EXPECT_NE(status.ToString().find(tier_->info().file), std::string::npos)
        << status;
  }
  EXPECT_EQ(tier_->capacity_bytes(), capacity);
  EXPECT_EQ(tier_->used_bytes(), 0);
  EXPECT_TRUE(Take(*tier_, kMiB).ok()) << "it goes on after a refusal";
}

TEST(FileDiskFileTest, AllocateNeverGrowsTheFile) {
  TemporaryDirectory directory;
  const auto tier = MustOpen(directory.path());
  const absl::Status status = tier->Allocate(kMiB).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_NE(status.ToString().find(tier->info().file), std::string::npos);
  EXPECT_EQ(StatOf(tier->fd()).st_size, 0);
  const absl::StatusOr<Growth> growth = tier->GrowthFor(kMiB);
  ASSERT_TRUE(growth.ok()) << growth.status();
  EXPECT_EQ(growth->offset, 0);
  EXPECT_EQ(growth->least_bytes, kMiB);
  const absl::StatusOr<int64_t> gained = tier->Grow(*growth);
  ASSERT_TRUE(gained.ok()) << gained.status();
  EXPECT_EQ(StatOf(tier->fd()).st_size, *gained);
  EXPECT_EQ(tier->capacity_bytes(), 0) << "not before AddSpace";
}

TEST_P(DiskFileContract, SaysWhatItIs) {
  EXPECT_FALSE(tier_->info().file.empty());
  EXPECT_FALSE(tier_->info().direct_io_reason.empty());
  EXPECT_GE(tier_->fd(), 0);
}

TEST_P(DiskFileContract, RemoveLeavesNothing) {
  ASSERT_TRUE(Take(*tier_, kMiB).ok());
  EXPECT_TRUE(tier_->Remove().ok());
  EXPECT_TRUE(directory_.Entries().empty());
}

TEST(MemoryDiskFileTest, IsAsLargeAsSaid) {
  const auto tier = MakeMemoryDiskFile(5, 3 * kMiB + 100);
  EXPECT_EQ(tier->fd(), 5);
  EXPECT_EQ(tier->capacity_bytes(), 3 * kMiB);
  ASSERT_TRUE(Take(*tier, 3 * kMiB).ok());
  const absl::Status status = Take(*tier, 1).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status));
  EXPECT_NE(status.ToString().find("memory:5"), std::string::npos) << status;
}

TEST(FileDiskFileTest, TheDestructorRemovesTheJobsFiles) {
  TemporaryDirectory directory;
  {
    const auto tier = MustOpen(directory.path());
    ASSERT_TRUE(Take(*tier, kMiB).ok());
    EXPECT_TRUE(std::filesystem::exists(tier->info().file));
  }
  EXPECT_TRUE(directory.Entries().empty());
}

TEST(FileDiskFileTest, SpaceIsPreallocatedAndLittleIsWasted) {
  TemporaryDirectory directory;
  const auto tier = MustOpen(directory.path());
  EXPECT_EQ(tier->capacity_bytes(), 0);
  int64_t asked = 0;
  for (int i = 0; i < 40; ++i) {
    ASSERT_TRUE(Take(*tier, kMiB + 4096).ok());
    asked += kMiB + 4096;
    const struct stat status = StatOf(tier->fd());
    EXPECT_EQ(status.st_size, tier->capacity_bytes());
    EXPECT_GE(status.st_blocks * 512, tier->capacity_bytes()) << "no holes";
    EXPECT_LE(tier->capacity_bytes(), asked + asked / 8 + 2 * kMiB);
  }
}

TEST(FileDiskFileTest, WhatIsWrittenComesBack) {
  TemporaryDirectory directory;
  const auto tier = MustOpen(directory.path());
  const Extent skipped = Take(*tier, 12288).value();
  const Extent extent = Take(*tier, 8192).value();
  tier->Free(skipped);
  const std::unique_ptr<void, decltype(&std::free)> memory(
      std::aligned_alloc(4096, 8192), &std::free);
  std::memset(memory.get(), 0x37, 8192);
  ASSERT_EQ(pwrite(tier->fd(), memory.get(), 8192, extent.offset), 8192)
      << "aligned as info says";
  std::memset(memory.get(), 0, 8192);
  ASSERT_EQ(pread(tier->fd(), memory.get(), 8192, extent.offset), 8192);
  const auto* bytes = static_cast<const unsigned char*>(memory.get());
  for (int i = 0; i < 8192; ++i) ASSERT_EQ(bytes[i], 0x37) << "byte " << i;
}

TEST(FileDiskFileTest, DirectIoIsWhatTheFileSays) {
  TemporaryDirectory directory;
  const auto tier = MustOpen(directory.path());
  const bool direct = (fcntl(tier->fd(), F_GETFL) & O_DIRECT) != 0;
  EXPECT_EQ(tier->info().direct_io, direct) << tier->info().direct_io_reason;
  EXPECT_GT(tier->info().alignment, 0);
  EXPECT_EQ(4096 % tier->info().alignment, 0);
  EXPECT_TRUE(fcntl(tier->fd(), F_GETFD) & FD_CLOEXEC);
}

TEST(FileDiskFileTest, TmpfsIsBufferedAndSaysSo) {
  TemporaryDirectory directory;
  if (!directory.MountTmpfs("size=8m")) {
    GTEST_SKIP() << "mounting is not allowed here";
  }
  const auto tier = MustOpen(directory.path());
  ASSERT_NE(tier, nullptr);
  EXPECT_FALSE(tier->info().direct_io);
  EXPECT_NE(tier->info().direct_io_reason.find("tmpfs"), std::string::npos);
  EXPECT_EQ(fcntl(tier->fd(), F_GETFL) & O_DIRECT, 0);
}

// Four extents of 1.75 MiB fill 7 of the 8 MiB: the last one fits only as it
// does not insist on a whole growth unit.
TEST(FileDiskFileTest, AFullDiskIsNamedAndTheTierGoesOn) {
  TemporaryDirectory directory;
  if (!directory.MountTmpfs("size=8m")) {
    GTEST_SKIP() << "mounting is not allowed here";
  }
  auto tier = MustOpen(directory.path());
  ASSERT_NE(tier, nullptr);
  std::vector<Extent> extents;
  absl::StatusOr<Extent> extent = Take(*tier, 7 * kMiB / 4);
  while (extent.ok()) {
    extents.push_back(*extent);
    extent = Take(*tier, 7 * kMiB / 4);
  }
  EXPECT_EQ(extents.size(), 4u);
  EXPECT_TRUE(absl::IsResourceExhausted(extent.status())) << extent.status();
  const std::string message = extent.status().ToString();
  for (const char* part : {"ENOSPC", "bytes at offset"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  EXPECT_NE(message.find(tier->info().file), std::string::npos) << message;
  EXPECT_EQ(StatOf(tier->fd()).st_size, tier->capacity_bytes());
  EXPECT_EQ(StatOf(tier->fd()).st_blocks * 512, tier->capacity_bytes())
      << "what the failed attempt got is given back";
  tier->Free(extents[1]);
  EXPECT_EQ(Take(*tier, 7 * kMiB / 4).value(), extents[1]);
  tier.reset();
  EXPECT_TRUE(directory.Entries().empty());
}

TEST(FileDiskFileTest, ADiskFullFromTheStartLeavesNothing) {
  TemporaryDirectory directory;
  if (!directory.MountTmpfs("size=16k")) {
    GTEST_SKIP() << "mounting is not allowed here";
  }
  const std::string filler = directory.path() + "/filler";
  const int fd = open(filler.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
  ASSERT_GE(fd, 0);
  const std::vector<char> block(4096);
  while (write(fd, block.data(), block.size()) > 0) {
  }
  close(fd);
  const absl::Status status = OpenDiskFile({.path = directory.path()}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_NE(status.ToString().find("ENOSPC"), std::string::npos) << status;
  EXPECT_EQ(directory.Entries(), std::vector<std::string>{"filler"});
}

// A limit that needs no root, on a file system with blocks of its own.
TEST(FileDiskFileTest, ALimitOnTheFilesSizeIsAFullDisk) {
  TemporaryDirectory directory;
  EXPECT_TRUE(InChild([&] {
    signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{3 * kMiB, 3 * kMiB};
    if (setrlimit(RLIMIT_FSIZE, &limit) != 0) return false;
    const auto tier = MustOpen(directory.path());
    if (!Take(*tier, 2 * kMiB).ok()) return false;
    const absl::Status status = Take(*tier, 2 * kMiB).status();
    return absl::IsResourceExhausted(status) &&
           status.ToString().find("EFBIG") != std::string::npos &&
           StatOf(tier->fd()).st_size == 2 * kMiB && Take(*tier, kMiB).ok();
  }));
  EXPECT_TRUE(directory.Entries().empty());
}

TEST(FileDiskFileTest, AForkedChildLeavesTheFileAlone) {
  TemporaryDirectory directory;
  auto tier = MustOpen(directory.path());
  ASSERT_TRUE(Take(*tier, kMiB).ok());
  EXPECT_TRUE(InChild([&] {
    const bool ok = tier->Remove().ok();
    tier.reset();
    return ok;
  }));
  EXPECT_TRUE(std::filesystem::exists(tier->info().file));
  EXPECT_EQ(StatOf(tier->fd()).st_size, tier->capacity_bytes());
}

TEST(FileDiskFileTest, AMissingDirectoryIsNotFound) {
  const absl::Status status =
      OpenDiskFile({.path = testing::TempDir() + "/not-there"}).status();
  EXPECT_TRUE(absl::IsNotFound(status)) << status;
  EXPECT_TRUE(absl::IsNotFound(OpenDiskFile({.path = ""}).status()));
}

TEST(FileDiskFileTest, WhatAKilledJobLeftDoesNotKeepTheDiskFull) {
  TemporaryDirectory directory;
  if (!directory.MountTmpfs("size=8m")) {
    GTEST_SKIP() << "mounting is not allowed here";
  }
  FillWithStaleState(directory.path());
  const auto tier = MustOpen(directory.path());
  ASSERT_NE(tier, nullptr);
  const absl::StatusOr<Extent> extent = Take(*tier, 6 * kMiB);
  EXPECT_TRUE(extent.ok()) << extent.status();
  EXPECT_EQ(directory.Entries().size(), 1u);
}

TEST(FileDiskFileTest, AFileGrowsIntoTheRoomThatKilledJobsLeave) {
  TemporaryDirectory directory;
  if (!directory.MountTmpfs("size=8m")) {
    GTEST_SKIP() << "mounting is not allowed here";
  }
  const auto tier = MustOpen(directory.path());
  ASSERT_NE(tier, nullptr);
  FillWithStaleState(directory.path());
  const absl::StatusOr<Extent> extent = Take(*tier, 6 * kMiB);
  EXPECT_TRUE(extent.ok()) << extent.status();
}

}  // namespace
}  // namespace terrace
