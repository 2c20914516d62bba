// Which places a tier of persistent memory takes, which it refuses and does not
// touch, and what it leaves behind.
#include "tiers/pmem/pmem_place.h"

#include <sys/stat.h>
#include <sys/statvfs.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "base/bytes.h"
#include "base/io_fault.h"
#include "gmock/gmock.h"
#include "tests/support/loop_device.h"
#include "tests/support/own_child.h"
#include "tests/support/temporary_directory.h"
#include "tests/tiers/pmem/pmem_support.h"
#include "tiers/disk/given_mark.h"
#include "tiers/pmem/media_facts.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr int64_t kMiB = 1 << 20;
constexpr char kForced[] = "PMEM2_FORCE_GRANULARITY";

class PmemPlaceTest : public PmemTest {
 protected:
  bool MountTmpfs(const std::string& options) {
    return directory_.MountTmpfs(options);
  }
  static absl::Status Refused(const std::string& place,
                              int64_t budget_bytes = kMiB) {
    return OpenUnsafe(place, budget_bytes).status();
  }

  TemporaryDirectory directory_;
};

int64_t AllocatedBytes(const std::string& file) {
  struct stat node = {};
  EXPECT_EQ(stat(file.c_str(), &node), 0) << file;
  return int64_t{node.st_blocks} * 512;
}

std::string Contents(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

TEST_F(PmemPlaceTest, AFileSystemWithoutDaxIsRefusedInOneLine) {
  if (!MountTmpfs("size=8m")) GTEST_SKIP() << "mounting is not allowed here";
  const std::string given = directory_.Write("given", "");
  const std::string folder = directory_.MakeDirectory("folder");
  for (const std::string& place : {given, folder}) {
    const absl::Status refused =
        PmemMedium::Open({.place = place, .budget_bytes = kMiB}).status();
    EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
    EXPECT_THAT(refused.ToString(),
                AllOf(HasSubstr(place), HasSubstr("tmpfs"), HasSubstr("PAGE"),
                      HasSubstr("MAP_SYNC"), Not(HasSubstr("\n"))));
    EXPECT_EQ(IoFaultOf(refused).error, EOPNOTSUPP);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder));
  EXPECT_LE(AllocatedBytes(given), kGivenMarkBytes) << "no space was taken";
}

TEST_F(PmemPlaceTest, AGranularityThatIsForcedIsRefused) {
  ASSERT_EQ(setenv(kForced, "CACHE_LINE", 1), 0);
  const absl::Status refused = Refused(directory_.path());
  unsetenv(kForced);
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(refused.ToString(), HasSubstr(kForced));
  EXPECT_TRUE(directory_.empty());
  EXPECT_TRUE(Refused(directory_.path()).ok());
}

// The exit code of this test in a process that is started with the variable.
int RunForced(const char* granularity) {
  const std::string filter =
      std::string("--gtest_filter=PmemPlaceTest.") +
      testing::UnitTest::GetInstance()->current_test_info()->name();
  return ExitCodeInChild([&] {
    setenv(kForced, granularity, 1);
    execl("/proc/self/exe", "test", filter.c_str(), nullptr);
  });
}

// The library read it when it was loaded.
TEST_F(PmemPlaceTest, OneThatWasForcedAtTheStartAndUnsetIsRefusedAsWell) {
  if (std::getenv(kForced) == nullptr) {
    EXPECT_EQ(RunForced("BYTE"), 0);
    return;
  }
  unsetenv(kForced);
  const absl::Status refused = Refused(directory_.path());
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(refused.ToString(), HasSubstr(kForced));
}

// Were the variable not seen, its effect would be.
TEST_F(PmemPlaceTest, WhatTheLibraryBelievesIsCheckedWithTheKernel) {
  const char* const forced = std::getenv(kForced);
  if (forced == nullptr) {
    for (const char* granularity : {"BYTE", "CACHE_LINE"}) {
      EXPECT_EQ(RunForced(granularity), 0) << granularity;
    }
    return;
  }
  const std::string file = directory_.Write("file", std::string(4096, 'x'));
  const int fd = open(file.c_str(), O_RDWR | O_CLOEXEC);
  ASSERT_GE(fd, 0);
  const absl::Status refused =
      PersistDomain::Map(fd, file, 4096, PersistDomain::Media::kUnsafe)
          .status();
  close(fd);
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(refused.ToString(), AllOf(HasSubstr(file), HasSubstr(forced),
                                        HasSubstr("MAP_SYNC: EOPNOTSUPP")));
}

// Needs persistent memory whose caches do not persist, named as for
// pmem_medium_test.cc.
TEST_F(PmemPlaceTest, CachesThatOnlySeemToPersistAreRefused) {
  const char* const place = std::getenv("TERRACE_TEST_PMEM");
  if (place == nullptr || PersistenceDomains() != "memory_controller") {
    GTEST_SKIP() << "no such memory is named";
  }
  if (std::getenv(kForced) == nullptr) {
    EXPECT_EQ(RunForced("BYTE"), 0);
    return;
  }
  const int fd = open(place, O_RDWR | O_TMPFILE | O_CLOEXEC, 0600);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(posix_fallocate(fd, 0, 4096), 0);
  const absl::Status refused =
      PersistDomain::Map(fd, place, 4096, PersistDomain::Media::kUnsafe)
          .status();
  close(fd);
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(refused.ToString(),
              AllOf(HasSubstr("BYTE"), HasSubstr("memory_controller")));
}

TEST_F(PmemPlaceTest, ABudgetBeyondTheFileSystemIsRefused) {
  if (!MountTmpfs("size=4m")) GTEST_SKIP() << "mounting is not allowed here";
  const std::string given = directory_.Write("given", "");
  for (const std::string& place : {directory_.path(), given}) {
    const absl::Status refused = Refused(place, 4 * kMiB + 4096);
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(refused.ToString(),
                AllOf(HasSubstr(place), HasSubstr("a budget of 4198400"),
                      HasSubstr("there are 4194304"), Not(HasSubstr("\n"))));
  }
  EXPECT_EQ(directory_.Entries(), std::vector<std::string>{"given"});
  EXPECT_EQ(Contents(given), "");
}

TEST_F(PmemPlaceTest, ABudgetWithoutRoomNamesWhatIsFree) {
  if (!MountTmpfs("size=4m")) GTEST_SKIP() << "mounting is not allowed here";
  const std::string given = directory_.Write("given", "");
  directory_.Write("theirs", std::string(2 * kMiB, 't'));
  const std::string folder = directory_.MakeDirectory("folder");
  for (const std::string& place : {folder, given}) {
    const absl::Status refused = Refused(place, 3 * kMiB);
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    EXPECT_THAT(refused.ToString(),
                AllOf(HasSubstr(place), HasSubstr("ENOSPC"),
                      HasSubstr("a budget of 3145728 bytes"),
                      testing::ContainsRegex("[0-9]+ bytes are free")));
    EXPECT_EQ(IoFaultOf(refused).error, ENOSPC);
    EXPECT_TRUE(Refused(place, kMiB).ok()) << "less goes in";
    ASSERT_EQ(truncate(given.c_str(), 0), 0);
  }
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

TEST_F(PmemPlaceTest, WithoutABudgetItTakesAllThereIs) {
  if (!MountTmpfs("size=4m")) GTEST_SKIP() << "mounting is not allowed here";
  const auto medium = OpenUnsafe(directory_.path(), 0);
  ASSERT_TRUE(medium.ok()) << medium.status();
  EXPECT_GE((*medium)->size_bytes(), 3 * kMiB);
  EXPECT_LE((*medium)->size_bytes(), 4 * kMiB);
  struct statvfs found = {};
  ASSERT_EQ(statvfs(directory_.path().c_str(), &found), 0);
  EXPECT_LE(found.f_bavail * found.f_frsize, kMiB / 4);
  EXPECT_TRUE((*medium)->Write(0, Filled((*medium)->size_bytes(), 4)).ok());
}

TEST_F(PmemPlaceTest, EveryBlockIsTakenAtTheStart) {
  const std::string given = directory_.Write("given", "");
  for (const std::string& place : {directory_.path(), given}) {
    const auto medium = OpenUnsafe(place, 3 * kMiB + 4095);
    ASSERT_TRUE(medium.ok()) << medium.status();
    EXPECT_EQ((*medium)->size_bytes(), 3 * kMiB) << "in whole blocks";
    EXPECT_GE(AllocatedBytes((*medium)->name()), 3 * kMiB);
  }
}

TEST_F(PmemPlaceTest, ABudgetBelowABlockIsRefused) {
  for (const int64_t budget : {int64_t{-1}, int64_t{1}, int64_t{4095}}) {
    const absl::Status refused = Refused(directory_.path(), budget);
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(refused.ToString(),
                AllOf(HasSubstr(std::to_string(budget)), HasSubstr("4096")));
  }
  const auto least = OpenUnsafe(directory_.path(), 4096);
  ASSERT_TRUE(least.ok()) << least.status();
  EXPECT_EQ((*least)->size_bytes(), 4096);
}

TEST_F(PmemPlaceTest, WhatIsNotThereIsNotFound) {
  const std::string absent = directory_.path() + "/absent";
  const absl::Status refused = Refused(absent);
  EXPECT_TRUE(absl::IsNotFound(refused)) << refused;
  EXPECT_THAT(refused.ToString(),
              AllOf(HasSubstr(absent), HasSubstr("ENOENT")));
  EXPECT_FALSE(std::filesystem::exists(absent));
}

TEST_F(PmemPlaceTest, AFileOfOthersIsRefusedAndNotTouched) {
  const std::string theirs = directory_.Write("theirs", "not ours");
  const absl::Status refused = Refused(theirs);
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(refused.ToString(),
              AllOf(HasSubstr(theirs), HasSubstr("truncate -s 0")));
  EXPECT_EQ(Contents(theirs), "not ours");
}

TEST_F(PmemPlaceTest, OtherKindsAreRefused) {
  const std::string pipe = directory_.path() + "/pipe";
  ASSERT_EQ(mkfifo(pipe.c_str(), 0600), 0);
  for (const std::string& place : {pipe, std::string("/dev/null")}) {
    const absl::Status refused = Refused(place);
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(refused.ToString(),
                AllOf(HasSubstr(place), HasSubstr("DAX device")));
  }
}

TEST_F(PmemPlaceTest, ABlockDeviceIsRefusedAndNotMarked) {
  LoopDevice device(8 * kMiB);
  if (!device.ok()) GTEST_SKIP() << device.reason();
  const absl::Status refused = Refused(device.path());
  EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
  EXPECT_THAT(refused.ToString(),
              AllOf(HasSubstr(device.path()), HasSubstr("block device")));
  EXPECT_EQ(RawBytes(device.path(), 0, 4096), std::vector<std::byte>(4096));
}

TEST_F(PmemPlaceTest, APlaceThatCannotBeWrittenIsPermissionDenied) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  ASSERT_EQ(chmod(directory_.path().c_str(), 0755), 0);
  EXPECT_EQ(ExitCodeInChild([&] {
              if (setresuid(kNobody, kNobody, kNobody) != 0) std::_Exit(2);
              const absl::Status refused = Refused(directory_.path());
              std::_Exit(absl::IsPermissionDenied(refused) ? 0 : 1);
            }),
            0);
}

TEST_F(PmemPlaceTest, AGivenFileIsOneJobs) {
  const std::string given = directory_.Write("given", "");
  auto first = OpenUnsafe(given, kMiB);
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::Status second = Refused(given);
  EXPECT_TRUE(absl::IsUnavailable(second)) << second;
  EXPECT_THAT(second.ToString(), AllOf(HasSubstr(given), HasSubstr("job")));
  first->reset();
  EXPECT_TRUE(Refused(given).ok());
  OtherPmemJob other(given, kMiB);
  EXPECT_TRUE(absl::IsUnavailable(Refused(given)));
}

TEST_F(PmemPlaceTest, JobsShareADirectory) {
  const auto first = OpenUnsafe(directory_.path(), kMiB);
  const auto second = OpenUnsafe(directory_.path(), kMiB);
  ASSERT_TRUE(first.ok() && second.ok()) << first.status() << second.status();
  EXPECT_NE((*first)->name(), (*second)->name());
  const auto one = Filled(kMiB, 1);
  const auto two = Filled(kMiB, 2);
  ASSERT_TRUE((*first)->Write(0, one).ok());
  ASSERT_TRUE((*second)->Write(0, two).ok());
  EXPECT_EQ(RawBytes((*first)->name(), 0, kMiB), one);
  EXPECT_EQ(RawBytes((*second)->name(), 0, kMiB), two);
}

// There is room for one of the two.
TEST_F(PmemPlaceTest, WhatAKilledJobLeftGoesAndTheLivingStay) {
  if (!MountTmpfs("size=8m")) GTEST_SKIP() << "mounting is not allowed here";
  const std::string folder = directory_.MakeDirectory("folder");
  OtherPmemJob living(folder, kMiB);
  OtherPmemJob killed(folder, 4 * kMiB);
  const absl::Status full = Refused(folder, 5 * kMiB);
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  killed.Kill();
  const auto next = OpenUnsafe(folder, 5 * kMiB);
  ASSERT_TRUE(next.ok()) << next.status();
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename());
  }
  EXPECT_EQ(names.size(), 2u);
}

TEST_F(PmemPlaceTest, WhatAKilledJobLeftInAGivenFileIsGone) {
  const std::string given = directory_.Write("given", "");
  OtherPmemJob killed(given, kMiB);
  killed.Kill();
  const auto next = OpenUnsafe(given, kMiB);
  ASSERT_TRUE(next.ok()) << next.status();
  std::vector<std::byte> read(kMiB, std::byte{1});
  ASSERT_TRUE((*next)->Read(0, absl::MakeSpan(read)).ok());
  EXPECT_EQ(read, std::vector<std::byte>(kMiB));
}

}  // namespace
}  // namespace terrace
