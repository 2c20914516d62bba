// Paths that are a file or a block device: what is taken, what is refused and
// not touched, and what is left behind.
#include "tiers/disk/given_file.h"

#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/runtime.h"
#include "tests/support/loop_device.h"
#include "tests/support/runtime_fixture.h"
#include "tests/support/temporary_directory.h"
#include "tests/tiers/grown_extent.h"
#include "tiers/disk/disk_file.h"
#include "tiers/memory/page_buffer.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

constexpr int64_t kMiB = 1 << 20;
constexpr int64_t kMark = GivenFile::kMarkBytes;

std::string Contents(const std::string& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

std::string BytesAt(int fd, int64_t offset, int64_t size_bytes) {
  std::string bytes(static_cast<size_t>(size_bytes), '?');
  EXPECT_EQ(pread(fd, bytes.data(), bytes.size(), offset), size_bytes);
  return bytes;
}

// Fills an extent through the tier's descriptor.
void WriteAll(const DiskFile& tier, Extent extent, char value) {
  PageBuffer buffer(extent.size_bytes);
  std::fill_n(buffer.data(), extent.size_bytes, value);
  ASSERT_EQ(pwrite(tier.fd(), buffer.data(),
                   static_cast<size_t>(extent.size_bytes), extent.offset),
            extent.size_bytes);
}

absl::Status OpenFails(const std::string& path) {
  return OpenDiskFile({.path = path}).status();
}

// A child that holds a tier on `path`, with a MiB written, until it is killed.
class OtherJob {
 public:
  explicit OtherJob(const std::string& path) {
    int ready[2];
    EXPECT_EQ(pipe2(ready, O_CLOEXEC), 0);
    child_ = fork();
    if (child_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      const auto tier = OpenDiskFile({.path = path});
      char verdict = 'n';
      if (tier.ok()) {
        WriteAll(**tier, Take(**tier, kMiB).value(), 'x');
        verdict = 'y';
      }
      if (write(ready[1], &verdict, 1) != 1) _exit(1);
      while (true) pause();
    }
    close(ready[1]);
    char verdict = 0;
    EXPECT_EQ(read(ready[0], &verdict, 1), 1);
    EXPECT_EQ(verdict, 'y');
    close(ready[0]);
  }
  ~OtherJob() { Kill(); }
  void Kill() {
    if (child_ <= 0) return;
    kill(child_, SIGKILL);
    waitpid(child_, nullptr, 0);
    child_ = -1;
  }

 private:
  pid_t child_ = -1;
};

// What a file and a device have in common.
class GivenPathTest : public testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    if (std::string(GetParam()) == "File") {
      path_ = directory_.Write("state", "");
      return;
    }
    device_ = std::make_unique<LoopDevice>(16 * kMiB);
    if (!device_->ok()) GTEST_SKIP() << device_->reason();
    path_ = device_->path();
  }

  TemporaryDirectory directory_;
  std::unique_ptr<LoopDevice> device_;
  std::string path_;
};
INSTANTIATE_TEST_SUITE_P(Kinds, GivenPathTest,
                         testing::Values("File", "Device"),
                         [](const auto& kind) {
                           return std::string(kind.param);
                         });

TEST_P(GivenPathTest, ItIsUsedAgainAndAgain) {
  std::string mark;
  for (int job = 0; job < 3; ++job) {
    const auto tier = OpenDiskFile({.path = path_});
    ASSERT_TRUE(tier.ok()) << tier.status();
    EXPECT_EQ((*tier)->info().file, path_);
    EXPECT_EQ((*tier)->used_bytes(), 0);
    const Extent extent = Take(**tier, 2 * kMiB).value();
    EXPECT_GE(extent.offset, kMark);
    EXPECT_EQ((*tier)->used_bytes(), 2 * kMiB);
    WriteAll(**tier, extent, 'a');
    EXPECT_TRUE((*tier)->Remove().ok());
    if (job == 0) mark = Contents(path_).substr(0, kMark);
    EXPECT_EQ(Contents(path_).substr(0, kMark), mark);
  }
  EXPECT_THAT(mark, HasSubstr("Terrace"));
}

TEST_P(GivenPathTest, TwoJobsDoNotMeet) {
  auto first = OpenDiskFile({.path = path_});
  ASSERT_TRUE(first.ok()) << first.status();
  const absl::Status second = OpenFails(path_);
  EXPECT_TRUE(absl::IsUnavailable(second)) << second;
  EXPECT_THAT(second.ToString(), AllOf(HasSubstr(path_), HasSubstr("job")));
  first->reset();
  EXPECT_TRUE(OpenDiskFile({.path = path_}).ok());
  OtherJob other(path_);
  EXPECT_TRUE(absl::IsUnavailable(OpenFails(path_)));
}

TEST_P(GivenPathTest, WhatAKilledJobLeftDisturbsNobody) {
  OtherJob other(path_);
  other.Kill();
  const auto tier = OpenDiskFile({.path = path_});
  ASSERT_TRUE(tier.ok()) << tier.status();
  EXPECT_EQ((*tier)->used_bytes(), 0);
  EXPECT_TRUE(Take(**tier, kMiB).ok());
}

TEST_P(GivenPathTest, AForkedChildLeavesItAlone) {
  auto tier = OpenDiskFile({.path = path_});
  ASSERT_TRUE(tier.ok()) << tier.status();
  const Extent extent = Take(**tier, kMiB).value();
  WriteAll(**tier, extent, 'z');
  const pid_t child = fork();
  if (child == 0) {
    const bool ok = (*tier)->Remove().ok();
    tier->reset();
    _exit(ok ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_EQ(Contents(path_).substr(static_cast<size_t>(extent.offset), kMiB),
            std::string(kMiB, 'z'));
  EXPECT_TRUE(absl::IsUnavailable(OpenFails(path_))) << "the lock is ours";
}

TEST_P(GivenPathTest, ARuntimeTrainsOnItAndCloses) {
  Options options;
  options.host_budget_bytes = 3 << 20;
  options.paths = {path_};
  options.threads = 1;
  options.huge_pages = HugePages::kOff;
  auto runtime = Runtime::Create(options);
  ASSERT_TRUE(runtime.ok()) << runtime.status();
  const absl::Time soon = absl::Now() + absl::Seconds(60);
  std::vector<TensorId> tensors;
  for (int i = 0; i < 6; ++i) {
    TensorSpec spec;
    spec.name = std::to_string(i);
    spec.size_bytes = kMiB;
    tensors.push_back((*runtime)->Register(spec).value());
  }
  for (const Access access : {Access::kOverwrite, Access::kRead}) {
    for (size_t i = 0; i < tensors.size(); ++i) {
      const auto pin = (*runtime)->Acquire(tensors[i], access, soon);
      ASSERT_TRUE(pin.ok()) << pin.status();
      if (access == Access::kRead) {
        EXPECT_TRUE(HasPattern(pin->data(), static_cast<uint8_t>(i)));
      } else {
        WritePattern(pin->data(), static_cast<uint8_t>(i));
      }
    }
  }
  EXPECT_GT((*runtime)->GetStats().paths[0].bytes_read, 0);
  EXPECT_TRUE((*runtime)->Close(soon).ok());
  *runtime = nullptr;
  const auto next = Runtime::Create(options);
  EXPECT_TRUE(next.ok()) << next.status();
}

TEST(GivenFileTest, ItsSpaceIsGivenBack) {
  TemporaryDirectory directory;
  const std::string file = directory.Write("state", "");
  auto tier = *OpenDiskFile({.path = file});
  ASSERT_TRUE(Take(*tier, 3 * kMiB).ok());
  EXPECT_GE(std::filesystem::file_size(file), 3 * kMiB + kMark);
  EXPECT_TRUE(tier->Remove().ok());
  EXPECT_EQ(std::filesystem::file_size(file), kMark);
}

TEST(GivenFileTest, AFileOfOthersIsRefusedAndNotTouched) {
  TemporaryDirectory directory;
  const std::string contents[] = {"x", std::string(kMark, '\0'),
                                  std::string(3 * kMark, 'y')};
  for (const std::string& content : contents) {
    const std::string file = directory.Write("theirs", content);
    const absl::Status refused = OpenFails(file);
    EXPECT_TRUE(absl::IsInvalidArgument(refused)) << refused;
    EXPECT_THAT(refused.ToString(),
                AllOf(HasSubstr(file),
                      HasSubstr(std::to_string(content.size()) + " bytes"),
                      HasSubstr("truncate -s 0 " + file)));
    EXPECT_EQ(Contents(file), content);
    ASSERT_EQ(truncate(file.c_str(), 0), 0);
    EXPECT_TRUE(OpenDiskFile({.path = file}).ok()) << "as the message says";
  }
}

TEST(GivenFileTest, AMarkWithOneByteChangedIsNoMark) {
  TemporaryDirectory directory;
  const std::string file = directory.Write("state", "");
  ASSERT_TRUE(OpenDiskFile({.path = file}).ok());
  const std::string mark = Contents(file);
  ASSERT_EQ(mark.size(), static_cast<size_t>(kMark));
  for (const size_t at : {size_t{0}, size_t{100}, mark.size() - 1}) {
    std::string changed = mark;
    changed[at] ^= 1;
    directory.Write("state", changed);
    EXPECT_TRUE(absl::IsInvalidArgument(OpenFails(file))) << at;
  }
}

TEST(GivenFileTest, AFullDiskIsNamedAndTheFileGoesOn) {
  TemporaryDirectory directory;
  if (!directory.MountTmpfs("size=4m")) {
    GTEST_SKIP() << "mounting is not allowed here";
  }
  const std::string file = directory.Write("state", "");
  const auto tier = *OpenDiskFile({.path = file});
  ASSERT_TRUE(Take(*tier, 2 * kMiB).ok());
  const absl::Status full = Take(*tier, 3 * kMiB).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_THAT(full.ToString(), AllOf(HasSubstr(file), HasSubstr("ENOSPC")));
  EXPECT_TRUE(Take(*tier, kMiB).ok());
}

TEST(GivenFileTest, OneThatCannotBeWrittenIsPermissionDenied) {
  if (geteuid() != 0) GTEST_SKIP() << "needs root to become another user";
  TemporaryDirectory directory;
  const std::string file = directory.Write("state", "");
  ASSERT_EQ(chmod(directory.path().c_str(), 0755), 0);
  ASSERT_EQ(chmod(file.c_str(), 0644), 0);
  const pid_t child = fork();
  if (child == 0) {
    if (setresuid(65534, 65534, 65534) != 0) _exit(2);
    _exit(absl::IsPermissionDenied(OpenFails(file)) ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

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
    EXPECT_TRUE(OpenDiskFile({.path = device.path()}).ok()) << "and marks it";
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
