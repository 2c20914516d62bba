#include "tiers/mapped_tier.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/io_fault.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/inline_executor.h"
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

  absl::Status remove_status;

 private:
  const std::string name_ = "/mnt/pmem0/state";
  const int64_t size_bytes_;
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
                       .events = events_});
  }

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
