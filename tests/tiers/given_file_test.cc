// Paths that are a file or a block device: what is taken, what is refused and
// not touched, and what is left behind.
#include "tiers/disk/given_file.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/runtime.h"
#include "tests/support/loop_device.h"
#include "tests/support/own_child.h"
#include "tests/support/runtime_fixture.h"
#include "tests/support/temporary_directory.h"
#include "tests/tiers/given_path.h"
#include "tests/tiers/grown_extent.h"
#include "tests/tiers/other_job.h"
#include "tiers/disk/disk_file.h"

namespace terrace {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// A child that holds a tier on `path`, with a MiB written, until it is killed.
class OtherDiskJob : public OtherJob {
 public:
  explicit OtherDiskJob(const std::string& path)
      : OtherJob([&path](HasIt has_it) {
          const auto tier = OpenDiskFile({.path = path});
          if (tier.ok()) WriteAll(**tier, Take(**tier, kMiB).value(), 'x');
          has_it(tier.ok());
        }) {}
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
  OtherDiskJob other(path_);
  EXPECT_TRUE(absl::IsUnavailable(OpenFails(path_)));
}

TEST_P(GivenPathTest, WhatAKilledJobLeftDisturbsNobody) {
  OtherDiskJob other(path_);
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
  EXPECT_TRUE(InChild([&] {
    const bool is_removed = (*tier)->Remove().ok();
    tier->reset();
    return is_removed;
  }));
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
  EXPECT_GT((*runtime)->GetStats().paths()[0].traffic.bytes_read, 0);
  EXPECT_TRUE((*runtime)->Close(soon).ok());
  *runtime = nullptr;
  const auto next = Runtime::Create(options);
  EXPECT_TRUE(next.ok()) << next.status();
}

// What was zero before the mark is zero again, and the mark of a job before
// stays, also where that job stored nothing more.
TEST_P(GivenPathTest, WithoutAnExtentItIsAsItWas) {
  const std::string before = Contents(path_);
  for (const bool is_removed : {false, true}) {
    auto tier = OpenDiskFile({.path = path_});
    ASSERT_TRUE(tier.ok()) << tier.status();
    EXPECT_NE(Contents(path_), before);
    if (is_removed) {
      EXPECT_TRUE((*tier)->Remove().ok());
    }
    tier->reset();
    EXPECT_EQ(Contents(path_), before);
  }
  std::string marked;
  {
    auto tier = OpenDiskFile({.path = path_});
    ASSERT_TRUE(tier.ok()) << tier.status();
    ASSERT_TRUE(Take(**tier, kMiB).ok());
    EXPECT_TRUE((*tier)->Remove().ok());
    tier->reset();
    marked = Contents(path_);
    EXPECT_NE(marked, before);
  }
  ASSERT_TRUE(OpenDiskFile({.path = path_}).ok());
  EXPECT_EQ(Contents(path_), marked);
}

TEST_P(GivenPathTest, AForkedChildTakesNoMarkOut) {
  auto tier = OpenDiskFile({.path = path_});
  ASSERT_TRUE(tier.ok()) << tier.status();
  const std::string marked = Contents(path_);
  EXPECT_TRUE(InChild([&] {
    tier->reset();
    return true;
  }));
  EXPECT_EQ(Contents(path_), marked);
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
  {
    const auto tier = OpenDiskFile({.path = file});
    ASSERT_TRUE(tier.ok()) << tier.status();
    ASSERT_TRUE(Take(**tier, kMiB).ok());
    ASSERT_TRUE((*tier)->Remove().ok());
  }
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
  EXPECT_TRUE(InChild([&] {
    return setresuid(kNobody, kNobody, kNobody) == 0 &&
           absl::IsPermissionDenied(OpenFails(file));
  }));
}

}  // namespace
}  // namespace terrace
