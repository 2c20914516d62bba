// A tensor with copies on two working tiers.
#include <optional>

#include "gtest/gtest.h"
#include "runtime/tensor/pin_book.h"
#include "runtime/tensor/tensor_life.h"
#include "tests/support/fake_reserver.h"

namespace terrace {
namespace {

constexpr char kTwoTiersCheck[] = "internal error at .*tensor_life\\.cc";

class TwoTiersTest : public testing::Test {
 protected:
  void Overwrite(FakeReserver& tier) {
    if (tensor_.at(tier.id()) == nullptr) {
      tensor_.BeginOverwrite(tier.Give(0));
    }
    tensor_.Hold(tier.id(), Access::kOverwrite);
    tensor_.Publish(tier.id());
    tensor_.Unhold(tier.id(), Access::kOverwrite);
  }
  void Fill(FakeReserver& tier) {
    tensor_.BeginFill(tier.id(), tier.Give(0), 1);
    tensor_.Filled(tier.id());
    tensor_.Checked(tier.id());
  }

  FakeReserver device_{kHbmTier};
  FakeReserver memory_{kDramTier};
  FakeReserver disk_{kDisk0};
  FakeReserver other_memory_{{TierKind::kDram, 1}};
  FakeReserver other_device_{{TierKind::kHbm, 1}};
  Tensor tensor_{{.name = "a", .size_bytes = 4096}, {0}};
  PinBook pins_;
};

TEST_F(TwoTiersTest, TheFastestOtherCopyIsTheSource) {
  EXPECT_EQ(tensor_.SourceFor(kHbmTier), nullptr);  // never written
  tensor_.GivePlace(disk_.Give(0));
  Overwrite(memory_);
  EXPECT_EQ(tensor_.SourceFor(kHbmTier), tensor_.at(kDramTier));
  EXPECT_EQ(tensor_.SourceFor(kDramTier), nullptr);
  Fill(device_);
  EXPECT_EQ(tensor_.SourceFor(kDramTier), tensor_.at(kHbmTier));
  tensor_.BeginDrain(2);
  tensor_.BeginMove(true, 3);
  tensor_.Drained({}, 1);
  EXPECT_EQ(tensor_.SourceFor(kDramTier), tensor_.at(kHbmTier));
  tensor_.Drop(kHbmTier);
  EXPECT_EQ(tensor_.SourceFor(kDramTier), tensor_.resting());
  tensor_.Lose(absl::DataLossError("gone"));
  EXPECT_EQ(tensor_.SourceFor(kDramTier), nullptr);
}

TEST_F(TwoTiersTest, OnlyTheSlowestOfTheNewestIsDirty) {
  Overwrite(device_);
  EXPECT_TRUE(tensor_.Dirty(kHbmTier));
  Fill(memory_);
  EXPECT_FALSE(tensor_.Dirty(kHbmTier));
  EXPECT_TRUE(tensor_.Dirty(kDramTier));
  EXPECT_TRUE(CheckInvariants(tensor_).ok());
  Overwrite(device_);
  EXPECT_FALSE(CheckInvariants(tensor_).ok());  // until the stale one is gone
  tensor_.Drop(kDramTier);
  EXPECT_TRUE(CheckInvariants(tensor_).ok());
  EXPECT_TRUE(tensor_.Dirty(kHbmTier));
}

// Memories before devices, each kind by its numbers.
TEST_F(TwoTiersTest, OfSeveralOfAKindTheFirstKeepsTheNewest) {
  EXPECT_EQ(tensor_.KeptAt(), kNoTier);
  Overwrite(other_device_);
  EXPECT_EQ(tensor_.KeptAt(), other_device_.id());
  Fill(device_);
  EXPECT_EQ(tensor_.KeptAt(), kHbmTier);
  EXPECT_FALSE(tensor_.Dirty(other_device_.id()));
  Fill(other_memory_);
  EXPECT_EQ(tensor_.KeptAt(), other_memory_.id());
  EXPECT_FALSE(tensor_.Dirty(kHbmTier));
  Fill(memory_);
  EXPECT_EQ(tensor_.KeptAt(), kDramTier);
  EXPECT_FALSE(tensor_.Dirty(other_memory_.id()));
  EXPECT_TRUE(CheckInvariants(tensor_).ok()) << CheckInvariants(tensor_);
  tensor_.Drop(kDramTier);
  EXPECT_TRUE(tensor_.Dirty(other_memory_.id()));
  tensor_.Lose(absl::DataLossError("gone"));
  EXPECT_EQ(tensor_.KeptAt(), kNoTier);
}

// So that it is not idle while it is read.
TEST_F(TwoTiersTest, TheOneThatKeepsTheNewestIsTheSource) {
  tensor_.GivePlace(disk_.Give(0));
  Overwrite(other_device_);
  EXPECT_EQ(tensor_.SourceFor(kHbmTier), tensor_.at(other_device_.id()));
  Fill(device_);
  EXPECT_EQ(tensor_.SourceFor(kDramTier), tensor_.at(kHbmTier));
  Fill(memory_);
  EXPECT_EQ(tensor_.SourceFor(other_memory_.id()), tensor_.at(kDramTier));
  tensor_.BeginDrain(2);
  tensor_.BeginMove(true, 3);
  tensor_.Drained({}, 1);
  EXPECT_EQ(tensor_.SourceFor(other_memory_.id()), tensor_.at(kDramTier));
  tensor_.Drop(kDramTier);
  tensor_.Drop(kHbmTier);
  EXPECT_EQ(tensor_.SourceFor(kHbmTier), tensor_.at(other_device_.id()));
  tensor_.Drop(other_device_.id());
  EXPECT_EQ(tensor_.SourceFor(kHbmTier), tensor_.resting());
}

TEST_F(TwoTiersTest, AWritePinIsAloneOverBoth) {
  Overwrite(device_);
  Fill(memory_);
  tensor_.Hold(kDramTier, Access::kRead);
  EXPECT_EQ(tensor_.pins(), 1);
  EXPECT_DEATH(tensor_.Hold(kHbmTier, Access::kUpdate), kTwoTiersCheck);
  tensor_.Hold(kHbmTier, Access::kRead);
  EXPECT_EQ(tensor_.pins(), 2);
  tensor_.Unhold(kHbmTier, Access::kRead);
  tensor_.Unhold(kDramTier, Access::kRead);
  tensor_.Hold(kHbmTier, Access::kUpdate);
  EXPECT_DEATH(tensor_.Hold(kDramTier, Access::kRead), kTwoTiersCheck);
}

TEST_F(TwoTiersTest, WhatIsReadStays) {
  Overwrite(device_);
  tensor_.BeginRead(kHbmTier);
  EXPECT_TRUE(tensor_.being_read());
  EXPECT_FALSE(tensor_.Idle(kHbmTier));
  EXPECT_DEATH(tensor_.Drop(kHbmTier), kTwoTiersCheck);
  tensor_.EndRead(kHbmTier);
  EXPECT_DEATH(tensor_.EndRead(kHbmTier), kTwoTiersCheck);
  EXPECT_TRUE(tensor_.Idle(kHbmTier));
  tensor_.Drop(kHbmTier);
}

TEST_F(TwoTiersTest, NothingStaleIsRead) {
  Overwrite(device_);
  Fill(memory_);
  Overwrite(device_);
  EXPECT_DEATH(tensor_.BeginRead(kDramTier), kTwoTiersCheck);
}

TEST_F(TwoTiersTest, WhatRefusedItIsForgottenWithTheLastCopy) {
  tensor_.GivePlace(disk_.Give(0));
  Overwrite(device_);
  Fill(memory_);
  tensor_.refusals.GiveUp(absl::UnavailableError("no"));
  tensor_.Drop(kHbmTier);
  EXPECT_TRUE(tensor_.refusals.gave_up());
  tensor_.Drop(kDramTier);
  EXPECT_FALSE(tensor_.refusals.gave_up());
}

TEST_F(TwoTiersTest, PinsOfEachTierAreCountedApart) {
  Overwrite(device_);
  Fill(memory_);
  tensor_.Hold(kHbmTier, Access::kRead);
  pins_.Grant(tensor_, kHbmTier, 7, Access::kRead);
  tensor_.Hold(kDramTier, Access::kRead);
  EXPECT_TRUE(pins_.WhoPins(tensor_, kHbmTier, 7).own);
  EXPECT_FALSE(pins_.WhoPins(tensor_, kHbmTier, 7).others);
  EXPECT_FALSE(pins_.WhoPins(tensor_, kDramTier, 7).own);
  EXPECT_TRUE(pins_.WhoPins(tensor_, kDramTier, 7).others);  // a hold
  EXPECT_TRUE(pins_.WhoPins(tensor_, 7).own);
  EXPECT_TRUE(pins_.WhoPins(tensor_, 7).others);
}

TEST_F(TwoTiersTest, ADiscardedPinLosesNothingThatTheOtherTierHas) {
  Overwrite(memory_);
  Fill(device_);
  tensor_.Hold(kHbmTier, Access::kUpdate);
  const uint64_t pin = pins_.Grant(tensor_, kHbmTier, 7, Access::kUpdate);
  const auto ended = pins_.End(pin, PinEnd::kDiscard);
  ASSERT_TRUE(ended.ok());
  EXPECT_EQ(ended->tier, kHbmTier);
  EXPECT_TRUE(ended->drop);
  EXPECT_FALSE(ended->lost);
  EXPECT_FALSE(ended->published);
}

TEST_F(TwoTiersTest, AnOverwriterThatWroteNothingLeavesTheOtherTiersCopy) {
  Overwrite(memory_);
  tensor_.BeginOverwrite(device_.Give(0));
  tensor_.Hold(kHbmTier, Access::kOverwrite);
  const uint64_t pin = pins_.Grant(tensor_, kHbmTier, 7, Access::kOverwrite);
  const auto ended = pins_.End(pin, PinEnd::kUnchanged);
  ASSERT_TRUE(ended.ok());
  EXPECT_TRUE(ended->drop);
  EXPECT_FALSE(ended->lost);
  tensor_.Drop(kHbmTier);
  EXPECT_EQ(tensor_.at(kDramTier)->generation, tensor_.generation());
}

}  // namespace
}  // namespace terrace
