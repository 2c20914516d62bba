// Paths that are a block device: what of it is taken, and what is refused and
// not touched.
#include <sys/mount.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/loop_device.h"
#include "tests/support/temporary_directory.h"
#include "tests/tiers/given_path.h"
#include "tests/tiers/grown_extent.h"
#include "tiers/disk/disk_file.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(GivenDeviceTest, ExtentsStayWithinItsMargins) {
  LoopDevice device(8 * kMiB + 512);
  if (!device.ok()) GTEST_SKIP() << device.reason();
  const auto tier = *OpenDiskFile({.path = device.path()});
  EXPECT_TRUE(tier->info().direct_io) << tier->info().direct_io_reason;
  const Extent all = tier->Allocate(6 * kMiB).value();
  EXPECT_EQ(all.offset, kMiB);
  WriteAll(*tier, all, 'w');
  const absl::Status full = Take(*tier, 4096).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_THAT(full.ToString(),
              AllOf(HasSubstr(device.path()), HasSubstr("4096 bytes"),
                    HasSubstr("0 of 7340032 are free")));
  const std::string zeros(kMiB, '\0');
  EXPECT_EQ(BytesAt(device.fd(), kMark, kMiB - kMark),
            zeros.substr(static_cast<size_t>(kMark)));
  EXPECT_EQ(BytesAt(device.fd(), 7 * kMiB, kMiB), zeros);
  EXPECT_EQ(BytesAt(device.fd(), kMiB, 6 * kMiB), std::string(6 * kMiB, 'w'));
}

TEST(GivenDeviceTest, OneTooSmallIsRefusedByItsBytes) {
  LoopDevice device(kMiB);
  if (!device.ok()) GTEST_SKIP() << device.reason();
  const absl::Status refused = OpenFails(device.path());
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(refused.ToString(),
              AllOf(HasSubstr(device.path()), HasSubstr("1048576 bytes"),
                    HasSubstr("2101248")));
}

// A partition table, superblocks where they are, and one put behind our mark.
TEST(GivenDeviceTest, DataOfOthersAreRefusedAndNotTouched) {
  LoopDevice device(8 * kMiB);
  if (!device.ok()) GTEST_SKIP() << device.reason();
  const int64_t end = 8 * kMiB;
  for (const bool is_marked : {false, true}) {
    for (const int64_t offset : {int64_t{510}, int64_t{1080}, int64_t{4096},
                                 64 * 1024 + int64_t{64}, end - 512}) {
      if (is_marked && offset < kMark) continue;  // no mark any more
      SCOPED_TRACE(offset);
      const char theirs = 'T';
      ASSERT_EQ(pwrite(device.fd(), &theirs, 1, offset), 1);
      ASSERT_EQ(fsync(device.fd()), 0);
      const std::string before = BytesAt(device.fd(), 0, end);
      const absl::Status refused = OpenFails(device.path());
      EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
      EXPECT_THAT(refused.ToString(),
                  AllOf(HasSubstr(device.path()),
                        HasSubstr("at offset " + std::to_string(offset))));
      EXPECT_EQ(BytesAt(device.fd(), 0, end), before);
      ASSERT_EQ(pwrite(device.fd(), "", 1, offset), 1);  // a zero
      ASSERT_EQ(fsync(device.fd()), 0);
    }
    const auto tier = OpenDiskFile({.path = device.path()});
    ASSERT_TRUE(tier.ok()) << tier.status();
    EXPECT_TRUE(Take(**tier, kMiB).ok()) << "and its mark stays";
  }
}

TEST(GivenDeviceTest, TheCommandOfTheMessageClearsIt) {
  if (std::system(
          "(command -v blkdiscard && command -v mkfs.ext4) >/dev/null") != 0) {
    GTEST_SKIP() << "no blkdiscard or mkfs.ext4";
  }
  LoopDevice device(16 * kMiB);
  if (!device.ok()) GTEST_SKIP() << device.reason();
  ASSERT_EQ(std::system(("mkfs.ext4 -q " + device.path()).c_str()), 0);
  const std::string refused(OpenFails(device.path()).message());
  const size_t command = refused.find("blkdiscard");
  ASSERT_NE(command, std::string::npos) << refused;
  ASSERT_EQ(std::system(refused.substr(command).c_str()), 0) << refused;
  const auto tier = OpenDiskFile({.path = device.path()});
  EXPECT_TRUE(tier.ok()) << tier.status();
}

TEST(GivenDeviceTest, AMountedOneIsRefusedAndNotTouched) {
  if (std::system("command -v mkfs.ext4 >/dev/null") != 0) {
    GTEST_SKIP() << "no mkfs.ext4";
  }
  LoopDevice device(16 * kMiB);
  if (!device.ok()) GTEST_SKIP() << device.reason();
  ASSERT_EQ(std::system(("mkfs.ext4 -q " + device.path()).c_str()), 0);
  TemporaryDirectory directory;
  const std::string place = directory.MakeDirectory("mounted");
  if (mount(device.path().c_str(), place.c_str(), "ext4", 0, "") != 0) {
    GTEST_SKIP() << "mounting is not allowed here";
  }
  std::ofstream(place + "/theirs") << "theirs";
  const absl::Status refused = OpenFails(device.path());
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(refused.ToString(),
              AllOf(HasSubstr(device.path()), HasSubstr("mounted")));
  EXPECT_EQ(Contents(place + "/theirs"), "theirs");
  EXPECT_EQ(umount(place.c_str()), 0);
}

}  // namespace
}  // namespace terrace
