#include "tiers/mapped_tier.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/io_fault.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/inline_executor.h"
#include "tests/support/manual_clock.h"
#include "tests/support/medium/tier_ids.h"
#include "tests/tiers/event_log.h"

namespace terrace {
namespace {

using testing::HasSubstr;

constexpr int64_t kPage = 4096;

// A medium without bytes: a tier asks for its size, what is bad, and its end.
class NoBytes final : public Medium {
 public:
  explicit NoBytes(int64_t size_bytes, std::vector<Extent> bad = {})
      : size_bytes_(size_bytes), bad_(std::move(bad)) {}
  const std::string& name() const override { return name_; }
  int64_t size_bytes() const override { return size_bytes_; }
  std::vector<Extent> bad_ranges() const override { return bad_; }
  absl::Status Read(int64_t, absl::Span<std::byte>) override { return {}; }
  absl::Status Write(int64_t, absl::Span<const std::byte>) override {
    return {};
  }
  absl::Status Remove() override { return remove_status; }
  int64_t most_bytes() const override {
    return std::max(most_bytes_, size_bytes_);
  }
  absl::StatusOr<int64_t> Grow(const Growth& growth) override {
    asked.push_back(growth);
    if (!grow_status.ok()) return grow_status;
    size_bytes_ += growth.least_bytes;
    return growth.least_bytes;
  }
  void GrowTo(int64_t most_bytes) { most_bytes_ = most_bytes; }

  absl::Status remove_status;
  absl::Status grow_status;
  std::vector<Growth> asked;

 private:
  const std::string name_ = "/mnt/pmem0/state";
  int64_t size_bytes_;
  int64_t most_bytes_ = 0;
  const std::vector<Extent> bad_;
};

class MappedTierTest : public testing::Test {
 protected:
  MappedTier Make(std::shared_ptr<Medium> medium,
                  TierKind kind = TierKind::kPmem) {
    return MappedTier({.id = kFar1,
                       .spec = {kind, "/mnt/pmem0", 6 * kPage},
                       .medium = std::move(medium),
                       .background = &background_,
                       .events = events_,
                       .clock = &clock_,
                       .patience = absl::Seconds(8)});
  }
  static bool Grows(const absl::StatusOr<std::optional<Reservation>>& asked) {
    return asked.ok() && !asked->has_value();
  }
  GrowthAnswer Answer(MappedTier& tier) {
    TERRACE_CHECK(background_.RunAll() == 1 && events_->grown.size() == 1);
    return tier.OnGrown(std::exchange(events_->grown, {}).front());
  }

  VirtualClock clock_;
  InlineExecutor background_;
  const std::shared_ptr<EventLog> events_ = std::make_shared<EventLog>();
};

TEST_F(MappedTierTest, ItIsWhatItsUserNamedAndNotTheCpus) {
  MappedTier tier = Make(std::make_shared<NoBytes>(6 * kPage));
  EXPECT_EQ(tier.id(), kFar1);
  EXPECT_EQ(tier.kind(), TierKind::kPmem);
  EXPECT_EQ(tier.name(), "/mnt/pmem0/state");
  EXPECT_EQ(tier.spec(), (TierSpec{TierKind::kPmem, "/mnt/pmem0", 6 * kPage}));
  EXPECT_EQ(tier.Address({0, kPage}), nullptr);
}

// A power failure may leave half of it; far memory dies with the machine.
TEST_F(MappedTierTest, PersistentMemoryIsSealedAndFarMemoryIsNot) {
  const auto medium = std::make_shared<NoBytes>(kPage);
  const MappedTier pmem = Make(medium);
  ASSERT_TRUE(pmem.seal_id().has_value());
  EXPECT_NE(pmem.seal_id(), Make(medium).seal_id());
  EXPECT_FALSE(Make(medium, TierKind::kFar).seal_id().has_value());
}

TEST_F(MappedTierTest, ABudgetIsWholePages) {
  MappedTier tier = Make(std::make_shared<NoBytes>(3 * kPage - 1));
  EXPECT_EQ(tier.usage().capacity_bytes, 2 * kPage);
}

TEST_F(MappedTierTest, FullItSaysWhatIsThereAndGrowsNever) {
  MappedTier tier = Make(std::make_shared<NoBytes>(4 * kPage));
  Reservation three = *std::move(*tier.Allocate(3 * kPage, true));
  EXPECT_EQ(three.tier(), kFar1);
  for (const bool must : {true, false}) {
    const absl::Status full = tier.Allocate(2 * kPage, must).status();
    EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
    EXPECT_EQ(full.message(),
              "/mnt/pmem0/state: no room for 8192 bytes: 4096 of 16384 are "
              "free, 4096 of them in one piece");
    EXPECT_EQ(IoFaultOf(full).path, "/mnt/pmem0/state");
  }
  three.Reset();
  EXPECT_EQ(tier.usage().used_bytes, 0);
  EXPECT_EQ(tier.usage().peak_bytes, 3 * kPage);
  EXPECT_TRUE(tier.Allocate(4 * kPage, true).ok());
  EXPECT_EQ(tier.NextEvent(), absl::InfiniteFuture());
}

// Bad ranges that touch, overlap a page's half, and lie past its end.
TEST_F(MappedTierTest, BadRangesAreNeverHandedOutAndDoNotCount) {
  MappedTier tier = Make(std::make_shared<NoBytes>(
      8 * kPage, std::vector<Extent>{{kPage + 512, 512},
                                     {kPage + 1024, kPage},
                                     {5 * kPage, kPage},
                                     {7 * kPage + 512, 9 * kPage}}));
  EXPECT_EQ(tier.usage().capacity_bytes, 4 * kPage);
  EXPECT_EQ(tier.usage().used_bytes, 0);
  std::vector<Reservation> taken;
  std::vector<int64_t> pages;
  while (true) {
    auto room = tier.Allocate(kPage, true);
    if (!room.ok()) break;
    pages.push_back((*room)->extent().offset / kPage);
    taken.push_back(*std::move(*room));
  }
  EXPECT_THAT(pages, testing::UnorderedElementsAre(0, 3, 4, 6));
  EXPECT_EQ(tier.usage().used_bytes, 4 * kPage);
  taken.clear();
  EXPECT_EQ(tier.usage().used_bytes, 0);
  EXPECT_EQ(tier.usage().peak_bytes, 4 * kPage);
}

TEST_F(MappedTierTest, OneThatGrowsDoesSoInTheBackgroundAndIsAskedAgain) {
  const auto medium = std::make_shared<NoBytes>(0);
  medium->GrowTo(4 * kPage);
  MappedTier tier = Make(medium);
  EXPECT_EQ(tier.usage().capacity_bytes, 0);
  EXPECT_TRUE(Grows(tier.Allocate(2 * kPage, true)));
  EXPECT_TRUE(medium->asked.empty());                  // not in the call
  EXPECT_TRUE(Grows(tier.Allocate(3 * kPage, true)));  // nor twice
  EXPECT_TRUE(Answer(tier).status.ok());
  ASSERT_EQ(medium->asked.size(), 1u);
  EXPECT_EQ(medium->asked[0].offset, 0);
  EXPECT_EQ(medium->asked[0].least_bytes, 2 * kPage);
  EXPECT_EQ(medium->asked[0].bytes, 4 * kPage);  // and no more than it may
  Reservation two = *std::move(*tier.Allocate(2 * kPage, true));
  EXPECT_EQ(two.extent(), (Extent{0, 2 * kPage}));
  EXPECT_TRUE(Grows(tier.Allocate(kPage, true)));
  Answer(tier);
  EXPECT_EQ(medium->asked[1].offset, 2 * kPage);
  Reservation one = *std::move(*tier.Allocate(kPage, true));
  EXPECT_EQ(one.extent(), (Extent{2 * kPage, kPage}));
  const absl::Status full = tier.Allocate(2 * kPage, true).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_EQ(background_.RunAll(), 0);
}

TEST_F(MappedTierTest, ARefusedGrowthIsNotTriedAgainForWhatFitsElsewhere) {
  const auto medium = std::make_shared<NoBytes>(0);
  medium->GrowTo(4 * kPage);
  medium->grow_status = absl::ResourceExhaustedError("EDQUOT");
  MappedTier tier = Make(medium);
  EXPECT_TRUE(Grows(tier.Allocate(kPage, /*must=*/false)));
  const GrowthAnswer answer = Answer(tier);
  EXPECT_EQ(answer.status, medium->grow_status);
  EXPECT_FALSE(answer.must);
  EXPECT_TRUE(absl::IsResourceExhausted(tier.Allocate(kPage, false).status()));
  EXPECT_TRUE(Grows(tier.Allocate(kPage, true)));
  EXPECT_TRUE(Answer(tier).must);
  tier.ForgetRefusals();
  EXPECT_TRUE(Grows(tier.Allocate(kPage, false)));
  Answer(tier);
}

TEST_F(MappedTierTest, WhatDoesNotAnswerIsLate) {
  const auto medium = std::make_shared<NoBytes>(0);
  medium->GrowTo(kPage);
  MappedTier tier = Make(medium);
  EXPECT_TRUE(Grows(tier.Allocate(kPage, true)));
  const absl::Time begin = clock_.Now();
  absl::Status late;
  while (late.ok() && clock_.Now() < begin + absl::Seconds(20)) {
    clock_.JumpTo(tier.NextEvent());
    late = tier.CheckGrowth(clock_.Now());
  }
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_TRUE(tier.late());
  EXPECT_TRUE(Answer(tier).late);
  EXPECT_FALSE(tier.late());
}

// They are known once their bytes have come.
TEST_F(MappedTierTest, BadRangesOfWhatItGrewByAreNotHandedOutEither) {
  const auto medium =
      std::make_shared<NoBytes>(kPage, std::vector<Extent>{{2 * kPage, 512}});
  medium->GrowTo(4 * kPage);
  MappedTier tier = Make(medium);
  Reservation first = *std::move(*tier.Allocate(kPage, true));
  EXPECT_TRUE(Grows(tier.Allocate(3 * kPage, true)));
  Answer(tier);
  EXPECT_EQ(tier.usage().capacity_bytes, 3 * kPage);
  EXPECT_EQ(tier.usage().used_bytes, kPage);
  EXPECT_TRUE(
      absl::IsResourceExhausted(tier.Allocate(2 * kPage, true).status()));
  Reservation second = *std::move(*tier.Allocate(kPage, true));
  Reservation third = *std::move(*tier.Allocate(kPage, true));
  EXPECT_EQ(second.extent().offset + third.extent().offset, 4 * kPage);
}

TEST_F(MappedTierTest, ItsFileGoesInTheBackground) {
  const auto medium = std::make_shared<NoBytes>(kPage);
  medium->remove_status = absl::UnavailableError("EBUSY");
  MappedTier tier = Make(medium);
  EXPECT_TRUE(tier.removed());
  tier.BeginRemove();
  EXPECT_FALSE(tier.removed());
  EXPECT_TRUE(events_->removed.empty());
  background_.RunAll();
  ASSERT_EQ(events_->removed.size(), 1u);
  EXPECT_EQ(events_->removed[0].tier, kFar1);
  EXPECT_EQ(events_->removed[0].status, absl::UnavailableError("EBUSY"));
  tier.OnRemoved();
  EXPECT_TRUE(tier.removed());
}

TEST_F(MappedTierTest, AbandonedItKeepsItsBytesForCopiesThatNeverEnd) {
  auto medium = std::make_shared<NoBytes>(2 * kPage);
  const std::weak_ptr<Medium> left = medium;
  {
    MappedTier tier = Make(std::move(medium));
    Reservation room = *std::move(*tier.Allocate(kPage, true));
    tier.Abandon();
    room.Reset();
    EXPECT_EQ(tier.usage().used_bytes, kPage);
  }
  EXPECT_FALSE(left.expired());
}

}  // namespace
}  // namespace terrace
