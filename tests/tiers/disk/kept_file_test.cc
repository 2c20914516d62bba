// A job's file that its process has left, opened by another.
#include "tiers/disk/kept_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/temporary_directory.h"
#include "tiers/disk/disk_file.h"
#include "tiers/left_behind.h"

namespace terrace {
namespace {

constexpr int64_t kSize = 64 << 10;

class KeptFileTest : public testing::Test {
 protected:
  // One whose process has ended without a word, with an extent of that text.
  void SetUp() override {
    auto file = OpenDiskFile({.path = directory_.path()});
    ASSERT_TRUE(file.ok()) << file.status();
    const auto growth = (*file)->GrowthFor(kSize);
    ASSERT_TRUE(growth.ok()) << growth.status();
    const auto gained = (*file)->Grow(*growth);
    ASSERT_TRUE(gained.ok()) << gained.status();
    (*file)->AddSpace(*gained);
    extent_ = *(*file)->Allocate(kSize);
    name_ = (*file)->info().file;
    kept_ = *(*file)->Keep();
    descriptor_ = (*file)->fd();
    capacity_ = (*file)->capacity_bytes();
    LeaveBehind(std::shared_ptr<DiskFile>(*std::move(file)));
  }
  // What it had under way is over. The number stays in use: who was left behind
  // has it closed in children.
  void EndTransfers() {
    const OwnDescriptor null = OwnDescriptor::Open("/dev/null", O_RDWR);
    EXPECT_EQ(dup2(null.get(), descriptor_), descriptor_);
  }
  absl::StatusOr<std::unique_ptr<DiskFile>> Reopen(
      KeptFile kept, absl::Duration patience = absl::Seconds(20)) {
    return ReopenDiskFile({.path = directory_.path()}, std::move(kept),
                          SystemClock().Now() + patience);
  }
  // With another descriptor of the lock, as a store hands it out again.
  KeptFile Again() const {
    KeptFile kept;
    kept.name = kept_.name;
    kept.lock = kept_.lock.Share();
    kept.direct_io = kept_.direct_io;
    kept.alignment = kept_.alignment;
    kept.seal_id = kept_.seal_id;
    return kept;
  }

  const TemporaryDirectory directory_;
  KeptFile kept_;
  Extent extent_;
  std::string name_;
  int descriptor_ = -1;
  int64_t capacity_ = 0;
};

TEST_F(KeptFileTest, IsWhatItWas) {
  EndTransfers();
  auto file = Reopen(Again());
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ((*file)->capacity_bytes(), capacity_);
  EXPECT_EQ((*file)->used_bytes(), 0);
  EXPECT_EQ((*file)->info().file, name_);
  EXPECT_NE((*file)->info().seal_id, 0u);
  EXPECT_EQ((*file)->info().seal_id, kept_.seal_id);
  EXPECT_TRUE((*file)->TakeAt(extent_));
  EXPECT_FALSE((*file)->TakeAt(extent_)) << "it is taken";
  EXPECT_FALSE((*file)->TakeAt({extent_.offset, INT64_MAX}));
  (*file)->Free(extent_);
  // It goes with its new owner.
  file->reset();
  EXPECT_FALSE(std::filesystem::exists(name_));
}

TEST_F(KeptFileTest, TransfersThatAreUnderWayAreWaitedFor) {
  const auto early = Reopen(Again(), absl::Milliseconds(50));
  EXPECT_TRUE(absl::IsDeadlineExceeded(early.status())) << early.status();
  EXPECT_TRUE(std::filesystem::exists(name_)) << "nothing is removed";
  EndTransfers();
  EXPECT_TRUE(Reopen(Again()).ok());
}

TEST_F(KeptFileTest, NobodyTakesItMeanwhile) {
  EndTransfers();
  auto other = OpenDiskFile({.path = directory_.path()});
  ASSERT_TRUE(other.ok()) << other.status();
  while ((*other)->Reclaim()) {
  }
  EXPECT_TRUE(std::filesystem::exists(name_));
  EXPECT_TRUE(Reopen(Again()).ok());
}

TEST_F(KeptFileTest, AnothersLockIsRefused) {
  EndTransfers();
  KeptFile wrong = Again();
  wrong.lock = OwnDescriptor::Open(directory_.Write("lock", ""), O_RDWR);
  EXPECT_TRUE(absl::IsInvalidArgument(Reopen(std::move(wrong)).status()));
  EXPECT_TRUE(std::filesystem::exists(name_));
}

TEST_F(KeptFileTest, WhatIsGoneIsNotFound) {
  EndTransfers();
  std::filesystem::remove_all(std::filesystem::path(name_).parent_path());
  EXPECT_TRUE(absl::IsNotFound(Reopen(Again()).status()));
  for (const char* name : {"", ".", "..", "lock", "terrace-1-x"}) {
    KeptFile wrong = Again();
    wrong.name = name;
    EXPECT_TRUE(absl::IsNotFound(Reopen(std::move(wrong)).status())) << name;
  }
}

}  // namespace
}  // namespace terrace
