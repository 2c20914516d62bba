#include "tiers/disk/disk_tier.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/io_fault.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/inline_executor.h"
#include "tests/support/manual_clock.h"
#include "tests/support/medium/tier_ids.h"
#include "tests/support/scripted_disk_file.h"
#include "tests/tiers/event_log.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr int64_t kDiskPage = 4096;
constexpr absl::Duration kPatience = absl::Seconds(8);

// Two pages, which grow to six.
class DiskTierTest : public testing::Test {
 protected:
  using Asked = absl::StatusOr<std::optional<Reservation>>;

  ~DiskTierTest() override { background_.RunAll(); }

  DiskTier& tier() {
    if (tier_ == nullptr) {
      DiskTierParts parts;
      parts.id = kDisk2;
      parts.file = std::move(owned_);
      parts.background = &background_;
      parts.events = events_;
      parts.clock = &clock_;
      parts.patience = kPatience;
      tier_ = std::make_unique<DiskTier>(std::move(parts));
    }
    return *tier_;
  }
  Asked Ask(int64_t pages, bool must = true) {
    return tier().Allocate(pages * kDiskPage, must);
  }
  Reservation Take(int64_t pages) { return *std::move(*Ask(pages)); }
  static bool Grows(const Asked& asked) {
    return asked.ok() && !asked->has_value();
  }
  // Lets the disk answer.
  GrowthAnswer Answer() {
    TERRACE_CHECK(background_.RunAll() == 1 && events_->grown.size() == 1);
    const Grown grown = std::exchange(events_->grown, {}).front();
    EXPECT_EQ(grown.tier, kDisk2);
    return tier().OnGrown(grown);
  }

  VirtualClock clock_;
  InlineExecutor background_;
  const std::shared_ptr<EventLog> events_ = std::make_shared<EventLog>();
  std::unique_ptr<ScriptedDiskFile> owned_ =
      std::make_unique<ScriptedDiskFile>(0, 2 * kDiskPage, 6 * kDiskPage);
  ScriptedDiskFile& file_ = *owned_;
  std::unique_ptr<DiskTier> tier_;
};

TEST_F(DiskTierTest, ItIsItsFile) {
  EXPECT_EQ(tier().id(), kDisk2);
  EXPECT_EQ(tier().name(), "disk0/state");
  EXPECT_EQ(tier().info().directory, "disk0");
  EXPECT_EQ(tier().usage().capacity_bytes, 2 * kDiskPage);
  EXPECT_EQ(tier().Address({0, kDiskPage}), nullptr);
  EXPECT_FALSE(IsWorkingTier(tier().id()));
}

TEST_F(DiskTierTest, NoTwoPathsHaveOneId) {
  DiskTierParts parts;
  parts.file = std::make_unique<ScriptedDiskFile>(1, 0, 0);
  parts.background = &background_;
  parts.clock = &clock_;
  EXPECT_NE(DiskTier(std::move(parts)).seal_id(), tier().seal_id());
}

TEST_F(DiskTierTest, SpaceThatThereIsComesAtOnce) {
  Reservation room = Take(2);
  EXPECT_EQ(room.tier(), kDisk2);
  EXPECT_EQ(tier().usage().used_bytes, 2 * kDiskPage);
  room.Reset();
  EXPECT_EQ(tier().usage().used_bytes, 0);
  EXPECT_EQ(tier().usage().peak_bytes, 2 * kDiskPage);
  EXPECT_EQ(file_.growths, 0);
}

TEST_F(DiskTierTest, ItGrowsInTheBackgroundAndIsAskedAgain) {
  const Reservation first = Take(2);
  EXPECT_TRUE(Grows(Ask(1)));
  EXPECT_EQ(file_.growths, 0);  // not in the call
  EXPECT_TRUE(Grows(Ask(1)));   // nor twice
  const GrowthAnswer answer = Answer();
  EXPECT_TRUE(answer.status.ok());
  EXPECT_FALSE(answer.late);
  EXPECT_TRUE(answer.must);
  EXPECT_EQ(file_.growths, 1);
  EXPECT_EQ(tier().usage().capacity_bytes, 3 * kDiskPage);
  EXPECT_EQ(Take(1).extent(), (Extent{2 * kDiskPage, kDiskPage}));
}

TEST_F(DiskTierTest, WhileItGrowsNothingElseIsHadEither) {
  EXPECT_TRUE(Grows(Ask(3)));
  EXPECT_TRUE(Grows(Ask(1)));  // though there are two
  Answer();
  EXPECT_EQ(Take(3).extent(), (Extent{0, 3 * kDiskPage}));
}

TEST_F(DiskTierTest, WhatItCannotGrowByIsRefusedAtOnce) {
  const Asked refused = Ask(7);
  EXPECT_TRUE(absl::IsResourceExhausted(refused.status()));
  EXPECT_THAT(std::string(refused.status().message()),
              HasSubstr("disk0/state"));
  EXPECT_EQ(background_.RunAll(), 0);
}

TEST_F(DiskTierTest, ARefusedGrowthIsNotTriedAgainForWhatFitsElsewhere) {
  file_.grow_status = absl::ResourceExhaustedError("ENOSPC");
  EXPECT_TRUE(Grows(Ask(3, /*must=*/false)));
  const GrowthAnswer answer = Answer();
  EXPECT_EQ(answer.status, file_.grow_status);
  EXPECT_FALSE(answer.must);
  EXPECT_TRUE(absl::IsResourceExhausted(Ask(3, /*must=*/false).status()));
  EXPECT_TRUE(Ask(2, /*must=*/false)->has_value());  // what there is
  // Until it is forgotten, or it must.
  tier().ForgetRefusals();
  EXPECT_TRUE(Grows(Ask(3, /*must=*/false)));
  Answer();
  EXPECT_TRUE(Grows(Ask(3, /*must=*/true)));
  EXPECT_TRUE(Answer().must);
  EXPECT_EQ(file_.growths, 3);
}

TEST_F(DiskTierTest, AGrowthThatSucceedsForgetsARefusal) {
  file_.grow_status = absl::ResourceExhaustedError("ENOSPC");
  ASSERT_TRUE(Grows(Ask(3)));
  Answer();
  file_.grow_status = absl::OkStatus();
  ASSERT_TRUE(Grows(Ask(3)));
  Answer();
  const Reservation all = Take(3);
  EXPECT_TRUE(Grows(Ask(1, /*must=*/false)));
}

// As the mover does: it looks when a look is due.
absl::Status LookUntil(DiskTier& tier, VirtualClock& clock, absl::Time end) {
  while (true) {
    absl::Status status = tier.CheckGrowth(clock.Now());
    if (!status.ok() || clock.Now() == end) return status;
    clock.JumpTo(std::min(end, tier.NextEvent()));
  }
}

TEST_F(DiskTierTest, ADiskThatDoesNotAnswerIsLateOnce) {
  const absl::Time start = clock_.Now();
  ASSERT_TRUE(Grows(Ask(3)));
  EXPECT_TRUE(
      LookUntil(tier(), clock_, start + kPatience - absl::Seconds(1)).ok());
  EXPECT_FALSE(tier().late());
  const absl::Status late = LookUntil(tier(), clock_, start + kPatience);
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_THAT(
      std::string(late.message()),
      HasSubstr("disk0/state: growing by 4096 bytes: no answer for 8s"));
  EXPECT_EQ(IoFaultOf(late).path, "disk0/state");
  EXPECT_TRUE(tier().late());
  EXPECT_TRUE(tier().CheckGrowth(clock_.Now() + kPatience).ok());
  EXPECT_EQ(tier().NextEvent(), absl::InfiniteFuture());
  EXPECT_TRUE(Grows(Ask(1)));  // it is asked for nothing
}

TEST_F(DiskTierTest, AnAnswerThatIsLateCountsAllTheSame) {
  ASSERT_TRUE(Grows(Ask(3)));
  LookUntil(tier(), clock_, clock_.Now() + kPatience).IgnoreError();
  ASSERT_TRUE(tier().late());
  const GrowthAnswer answer = Answer();
  EXPECT_TRUE(answer.late);
  EXPECT_TRUE(answer.status.ok());
  EXPECT_FALSE(tier().late());
  EXPECT_TRUE(Ask(3)->has_value());
}

TEST_F(DiskTierTest, OneThatGetsOnIsNotLate) {
  const absl::Time start = clock_.Now();
  ASSERT_TRUE(Grows(Ask(3)));
  EXPECT_TRUE(LookUntil(tier(), clock_, start + absl::Seconds(6)).ok());
  file_.progress = 1;
  EXPECT_TRUE(LookUntil(tier(), clock_, start + absl::Seconds(13)).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      LookUntil(tier(), clock_, start + absl::Seconds(15))));
}

TEST_F(DiskTierTest, TimeInWhichNobodyLookedIsNotCounted) {
  ASSERT_TRUE(Grows(Ask(3)));
  clock_.JumpTo(clock_.Now() + 3 * kPatience);  // the process was stopped
  EXPECT_TRUE(tier().CheckGrowth(clock_.Now()).ok());
  EXPECT_FALSE(tier().late());
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      LookUntil(tier(), clock_, clock_.Now() + kPatience)));
}

TEST_F(DiskTierTest, WhatKilledJobsLeftGoesPieceByPieceFromTheBeginning) {
  file_.reclaim_pieces = 2;
  tier();
  EXPECT_EQ(background_.RunAll(), 1);
  ASSERT_EQ(events_->reclaimed.size(), 1u);
  EXPECT_TRUE(events_->reclaimed[0].more);
  tier().OnReclaimed(events_->reclaimed[0]);
  EXPECT_EQ(background_.RunAll(), 1);
  ASSERT_EQ(events_->reclaimed.size(), 2u);
  EXPECT_FALSE(events_->reclaimed[1].more);
  tier().OnReclaimed(events_->reclaimed[1]);
  EXPECT_EQ(background_.RunAll(), 0);
}

TEST_F(DiskTierTest, ATierThatEndsReclaimsNoMore) {
  file_.reclaim_pieces = 9;
  tier();
  EXPECT_EQ(background_.RunAll(), 1);
  tier().BeginRemove();
  tier().OnReclaimed(events_->reclaimed[0]);
  EXPECT_EQ(background_.RunAll(), 1);  // the removal alone
  EXPECT_EQ(file_.removals, 1);
}

TEST_F(DiskTierTest, ItsFileGoesInTheBackground) {
  file_.remove_status = absl::UnavailableError("EBUSY");
  tier().BeginRemove();
  EXPECT_FALSE(tier().removed());
  EXPECT_EQ(file_.removals, 0);
  background_.RunAll();
  ASSERT_EQ(events_->removed.size(), 1u);
  EXPECT_EQ(events_->removed[0].tier, kDisk2);
  EXPECT_EQ(events_->removed[0].status, absl::UnavailableError("EBUSY"));
  tier().OnRemoved();
  EXPECT_TRUE(tier().removed());
}

TEST_F(DiskTierTest, AbandonedItTakesNothingBackAndItsFileStays) {
  Reservation room = Take(1);
  tier().Abandon();
  room.Reset();
  EXPECT_EQ(file_.used_bytes(), kDiskPage);
  tier_.reset();
  EXPECT_EQ(file_.used_bytes(), kDiskPage);  // it is there
}

TEST_F(DiskTierTest, ATaskThatHangsOutlivesTheTier) {
  ASSERT_TRUE(Grows(Ask(3)));
  tier().Abandon();
  tier_.reset();
  EXPECT_EQ(background_.RunAll(), 1);
  EXPECT_EQ(events_->grown.size(), 1u);
}

}  // namespace
}  // namespace terrace
