// Which tensors are in memory: rooms and residents, which leave for which, and
// windows. Slots are find_slot_test.cc's.
#include "runtime/residency/tier_residency.h"

#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/runtime.h"
#include "tests/support/test_core.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Memory for four tensors of a page each: two beside a window of two.
class TierResidencyTest : public testing::Test {
 protected:
  // One step of the queue asks in that order; the next one begins.
  void Trace(std::vector<Tensor*> tensors) {
    for (Tensor* const tensor : tensors) {
      tensor->customer = queue_;
      core_.planner.OnAccess(queue_, tensor->id);
    }
    core_.planner.BeginStep(queue_);
  }
  Tensor& AddResident(const char* name, TierId home = kDisk0) {
    Tensor& tensor = core_.Add(name, kPage, home);
    if (home == kNoTier) {
      core_.Write(tensor);
    } else {
      core_.Rest(tensor);
      core_.Fetch(tensor);
    }
    return tensor;
  }
  FoundPlace FindPlace(Tensor& tensor) {
    return residency_.FindPlace(queue_, window_, tensor, &leaving_);
  }

  TestCore core_{{.budget_bytes = 8 * kPage}};
  TierResidency& residency_ = core_.residency;
  Customer& customer_ = core_.Open(kPage, 2);
  Window& window_ = *customer_.window;
  const int64_t queue_ = customer_.id;
  std::vector<Tensor*> leaving_;
};

TEST_F(TierResidencyTest, APlaceIsOutsideTheWindowsWhileThereIsRoom) {
  Tensor& a = core_.Add("a");
  FoundPlace found = FindPlace(a);
  EXPECT_EQ(found.space, Space::kFound);
  EXPECT_EQ(found.room.from(), &core_.dram);
  EXPECT_TRUE(residency_.residents().Has(a));
  EXPECT_EQ(residency_.residents().size_bytes(), 2 * kPage);
  residency_.GiveBack(a, std::move(found.room));
  EXPECT_FALSE(residency_.residents().Has(a));
  EXPECT_EQ(core_.dram.usage().used_bytes, 4 * kPage);  // the window
}

TEST_F(TierResidencyTest, ThenItIsASlot) {
  AddResident("a");
  AddResident("b");
  Tensor& c = core_.Add("c");
  const FoundPlace found = FindPlace(c);
  EXPECT_EQ(found.space, Space::kFound);
  EXPECT_EQ(found.room.from(), &window_);
  EXPECT_THAT(leaving_, IsEmpty());
  EXPECT_EQ(residency_.evictions(), 0);
}

TEST_F(TierResidencyTest, WhoIsNeededLaterLeavesForWhoIsNeededSooner) {
  Tensor& a = AddResident("a");
  Tensor& b = AddResident("b");
  Tensor& c = core_.Add("c");
  Trace({&a, &c, &b});
  const FoundPlace found = FindPlace(c);
  EXPECT_EQ(found.room.from(), &core_.dram);
  EXPECT_EQ(b.at(kDramTier), nullptr);
  EXPECT_NE(a.at(kDramTier), nullptr);
  EXPECT_EQ(residency_.evictions(), 1);
}

TEST_F(TierResidencyTest, NobodyLeavesForWhoIsNeededLater) {
  Tensor& a = AddResident("a");
  Tensor& b = AddResident("b");
  Tensor& c = core_.Add("c");
  Trace({&a, &b, &c});
  EXPECT_EQ(FindPlace(c).room.from(), &window_);
  EXPECT_NE(a.at(kDramTier), nullptr);
  EXPECT_NE(b.at(kDramTier), nullptr);
}

TEST_F(TierResidencyTest, WhoLeavesDirtyIsNamedAndStaysUntilItIsWritten) {
  Tensor& a = AddResident("a");
  Tensor& b = AddResident("b");
  core_.Update(b);
  Tensor& c = core_.Add("c");
  Trace({&a, &c, &b});
  EXPECT_EQ(FindPlace(c).room.from(), &window_);  // it need not wait
  EXPECT_THAT(leaving_, ElementsAre(&b));
  EXPECT_TRUE(residency_.residents().IsLeaving(b));
  EXPECT_TRUE(residency_.GoesDown(b));
  EXPECT_NE(b.at(kDramTier), nullptr);
  residency_.Stay(b);
  EXPECT_FALSE(residency_.GoesDown(b));
}

TEST_F(TierResidencyTest, WhoHasNowhereToGoOrGaveUpStays) {
  Tensor& homeless = AddResident("homeless", kNoTier);
  Tensor& refused = AddResident("refused");
  core_.Update(refused);
  refused.refusals.GiveUp(absl::UnavailableError("EIO"));
  Tensor& c = core_.Add("c");
  Trace({&c, &homeless, &refused});
  EXPECT_EQ(FindPlace(c).room.from(), &window_);
  EXPECT_THAT(leaving_, IsEmpty());
}

TEST_F(TierResidencyTest, TheOthersOfAGroupAreKept) {
  Tensor& a = AddResident("a");
  Tensor& b = AddResident("b");
  Tensor& c = core_.Add("c");
  Trace({&a, &c, &b});
  residency_.Keep(b);
  EXPECT_EQ(FindPlace(c).room.from(), &window_);
  EXPECT_NE(b.at(kDramTier), nullptr);
  residency_.EndKeep();
  EXPECT_EQ(FindPlace(c).room.from(), &core_.dram);
}

TEST_F(TierResidencyTest, NothingBecomesResidentWhileAWindowWaits) {
  Tensor& a = core_.Add("a");
  residency_.windows().HoldRoom(true);
  EXPECT_TRUE(residency_.FindRoom(a).empty());
  EXPECT_EQ(FindPlace(a).room.from(), &window_);
  residency_.windows().HoldRoom(false);
  EXPECT_FALSE(residency_.FindRoom(a).empty());
}

TEST_F(TierResidencyTest, AWindowOfATensorIsThatOfItsCopy) {
  Tensor& a = AddResident("a");
  Tensor& b = core_.Add("b");
  EXPECT_EQ(residency_.WindowOf(a), nullptr);
  EXPECT_EQ(residency_.WindowOf(b), nullptr);
  b.BeginOverwrite(window_.Take(0, b, 2 * kPage));
  EXPECT_EQ(residency_.WindowOf(b), &window_);
  EXPECT_TRUE(residency_.GoesDown(b));
  EXPECT_FALSE(residency_.GoesDown(a));
}

TEST_F(TierResidencyTest, ResidentsMakeRoomForARange) {
  Tensor& clean = AddResident("clean");
  Tensor& dirty = AddResident("dirty");
  core_.Update(dirty);
  EXPECT_TRUE(residency_.FindRange(4 * kPage).empty());
  residency_.EvictForRange(4 * kPage, &leaving_);
  EXPECT_EQ(clean.at(kDramTier), nullptr);
  EXPECT_THAT(leaving_, ElementsAre(&dirty));
  EXPECT_EQ(residency_.residents().leaving(), 1);
  EXPECT_TRUE(residency_.RangeMayCome(8 * kPage, RoomAwaits::kNoPins, false));
  EXPECT_EQ(residency_.FindRange(2 * kPage).extent().size_bytes, 2 * kPage);
}

TEST_F(TierResidencyTest, ARangeMayComeIfOnlyWindowsAreInBetween) {
  EXPECT_TRUE(residency_.RangeMayCome(8 * kPage, RoomAwaits::kPins, false));
  EXPECT_FALSE(residency_.RangeMayCome(9 * kPage, RoomAwaits::kPins, false));
  Tensor& a = AddResident("a", kNoTier);
  EXPECT_FALSE(residency_.RangeMayCome(8 * kPage, RoomAwaits::kPins, false));
  EXPECT_TRUE(residency_.RangeMayCome(8 * kPage, RoomAwaits::kPins,
                                      /*late_fetches=*/true));
  a.Hold(kDramTier, Access::kRead);  // it may be let go of
  EXPECT_TRUE(residency_.RangeMayCome(8 * kPage, RoomAwaits::kPins, false));
  EXPECT_FALSE(residency_.RangeMayCome(8 * kPage, RoomAwaits::kNoPins, false));
  EXPECT_TRUE(residency_.RangeMayCome(8 * kPage, RoomAwaits::kNoPins, true));
  a.Unhold(kDramTier, Access::kRead);
  residency_.windows().Close(window_);  // it will go
  EXPECT_TRUE(residency_.RangeMayCome(8 * kPage, RoomAwaits::kPins, false));
  EXPECT_TRUE(residency_.RangeMayCome(8 * kPage, RoomAwaits::kNoPins, false));
}

TEST_F(TierResidencyTest, AClosedWindowGoesWithItsLastSlot) {
  Tensor& clean = core_.Add("clean");
  core_.Rest(clean);
  core_.transfers.StartFill(clean, window_.Take(0, clean, 2 * kPage),
                            IoClass::kDemand);
  core_.Settle();
  Tensor& pinned = core_.Add("pinned");
  pinned.BeginOverwrite(window_.Take(1, pinned, 2 * kPage));
  pinned.Hold(kDramTier, Access::kRead);
  residency_.CloseEmptyWindows();
  EXPECT_NE(clean.at(kDramTier), nullptr);  // it is open
  residency_.windows().Close(window_);
  EXPECT_EQ(residency_.windows().open_bytes(), 0);
  EXPECT_EQ(residency_.windows().size_bytes(), 4 * kPage);
  residency_.CloseEmptyWindows();
  EXPECT_EQ(clean.at(kDramTier), nullptr);
  EXPECT_EQ(core_.dram.usage().used_bytes, 4 * kPage);
  pinned.Unhold(kDramTier, Access::kRead);
  residency_.windows().OnUsed(residency_.WindowOf(pinned));
  residency_.CloseEmptyWindows();
  EXPECT_EQ(core_.dram.usage().used_bytes, 0);
}

TEST_F(TierResidencyTest, WhoIsUsedOrMovesIsNotEvicted) {
  Tensor& a = AddResident("a");
  a.Hold(kDramTier, Access::kRead);
  EXPECT_FALSE(residency_.Evict(a));
  EXPECT_NE(a.at(kDramTier), nullptr);
  a.Unhold(kDramTier, Access::kRead);
  EXPECT_FALSE(residency_.Evict(a));  // clean: it is gone
  EXPECT_EQ(a.at(kDramTier), nullptr);
  EXPECT_FALSE(residency_.Evict(a));
  EXPECT_EQ(residency_.evictions(), 1);
}

}  // namespace
}  // namespace terrace
