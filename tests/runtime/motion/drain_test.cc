// Transfers down: sealed, then moved, in the tensor's place or to a second
// one; or given up in between.
#include <xxhash.h>

#include <string>

#include "base/io_fault.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/motion/transfer_fixture.h"
#include "tiers/extent_header.h"

namespace terrace {
namespace {

using testing::Each;
using testing::IsEmpty;

using DrainTest = TransferTest;
using Kind = Arrival::Kind;

TEST_F(DrainTest, ItIsSealedAndThenMovedInPlace) {
  Tensor& tensor = AddDirty("a");
  EXPECT_EQ(transfers_.DrainTier(tensor), kNoTier);
  transfers_.StartDrain(tensor, kDisk0, {});
  EXPECT_EQ(tensor.drain(), Drain::kSealing);
  EXPECT_EQ(transfers_.tasks(), 1);
  EXPECT_EQ(core_.links.pending(), 0);
  EXPECT_EQ(transfers_.DrainTier(tensor), kDisk0);
  EXPECT_EQ(transfers_.Of(tensor).below, (Extent{0, kCopyBytes}));
  const std::vector<Sealed> sealed = RunTasks<Sealed>();
  ASSERT_EQ(sealed.size(), 1u);
  EXPECT_EQ(&transfers_.OnSealed(sealed[0]), &tensor);
  EXPECT_EQ(transfers_.tasks(), 0);
  transfers_.StartMove(tensor, /*failures=*/3);
  EXPECT_EQ(tensor.drain(), Drain::kMoving);
  EXPECT_EQ(tensor.resting()->generation, 0u);  // torn until it is whole
  const std::vector<Arrival> arrivals = core_.Settle();
  ASSERT_EQ(arrivals.size(), 1u);
  EXPECT_EQ(arrivals[0].kind, Kind::kWritten);
  EXPECT_EQ(arrivals[0].tensor, &tensor);
  EXPECT_EQ(arrivals[0].edge.from, kDramTier);
  EXPECT_EQ(arrivals[0].edge.to, kDisk0);
  EXPECT_FALSE(arrivals[0].moved);
  EXPECT_TRUE(tensor.Fetchable());
  EXPECT_FALSE(transfers_.Has(tensor));
  EXPECT_EQ(transfers_.DrainTier(tensor), kNoTier);
  ASSERT_EQ(core_.reports.size(), 1u);
  EXPECT_EQ(core_.reports[0].failures, 3);
}

TEST_F(DrainTest, TheSealSaysWhatItIsAndWhereItGoes) {
  core_.Add("before");  // has the first place
  Tensor& tensor = AddDirty("a");
  transfers_.StartDrain(tensor, kDisk0, {});
  RunTasks<Sealed>();
  const auto payload = core_.Payload(tensor);
  ExtentHeader header;
  ASSERT_TRUE(
      DecodeExtentHeader(
          {payload.data() - kTensorHeaderBytes, kTensorHeaderBytes}, &header)
          .ok());
  EXPECT_EQ(header.path_id, core_.resting.at(kDisk0).seal_id());
  EXPECT_EQ(header.own_offset, kCopyBytes);
  EXPECT_EQ(header.tensor_id, 1);
  EXPECT_EQ(header.generation, 1u);
  EXPECT_EQ(header.payload_bytes, kPage);
  EXPECT_EQ(header.payload_hash, XXH3_64bits(payload.data(), payload.size()));
  EXPECT_EQ(header.name, "a");
  transfers_.GiveUp(tensor);
}

TEST_F(DrainTest, WhatIsWrittenComesBack) {
  Tensor& tensor = AddDirty("a");
  transfers_.StartDrain(tensor, kDisk0, {});
  core_.Settle();
  std::fill(core_.Payload(tensor).begin(), core_.Payload(tensor).end(),
            std::byte{99});
  tensor.Drop(kDramTier);
  StartFill(tensor);
  core_.Settle();
  EXPECT_THAT(core_.Payload(tensor), Each(std::byte{1}));
}

TEST_F(DrainTest, ASecondPlaceBecomesThePlaceOnceItIsWhole) {
  Tensor& tensor = AddDirty("a");
  transfers_.StartDrain(tensor, kDisk1, Place(kDisk1));
  EXPECT_EQ(transfers_.second_bytes(kDisk1), kCopyBytes);
  EXPECT_EQ(transfers_.second_bytes(kDisk0), 0);
  EXPECT_EQ(tensor.resting()->place.tier(), kDisk0);
  const std::vector<Arrival> arrivals = core_.Settle();
  ASSERT_EQ(arrivals.size(), 1u);
  EXPECT_EQ(arrivals[0].kind, Kind::kWritten);
  EXPECT_TRUE(arrivals[0].moved);
  EXPECT_EQ(tensor.resting()->place.tier(), kDisk1);
  EXPECT_EQ(transfers_.second_bytes(kDisk1), 0);
  EXPECT_EQ(core_.resting.at(kDisk0).usage().used_bytes, 0);
  EXPECT_EQ(core_.resting.at(kDisk1).usage().used_bytes, kCopyBytes);
  EXPECT_TRUE(tensor.Fetchable());
}

TEST_F(DrainTest, ARefusedSecondPlaceLeavesTheFirstAsItWas) {
  Tensor& tensor = AddResting("a");
  StartFill(tensor);
  core_.Settle();
  core_.Update(tensor);
  faults_.FailFile(1, {.kind = FaultKind::kError, .error = ENOSPC});
  transfers_.StartDrain(tensor, kDisk1, Place(kDisk1));
  const std::vector<Arrival> arrivals = core_.SettleFor(absl::Seconds(1));
  ASSERT_EQ(arrivals.size(), 1u);
  EXPECT_EQ(arrivals[0].kind, Kind::kWriteFailed);
  EXPECT_EQ(IoFaultOf(arrivals[0].status).error, ENOSPC);
  EXPECT_EQ(arrivals[0].edge.to, kDisk1);
  EXPECT_TRUE(tensor.Dirty(kDramTier));
  EXPECT_EQ(tensor.resting()->place.tier(), kDisk0);
  EXPECT_EQ(tensor.resting()->generation, 1u);  // the one before
  EXPECT_EQ(core_.resting.at(kDisk1).usage().used_bytes, 0);
  EXPECT_FALSE(transfers_.Has(tensor));
}

TEST_F(DrainTest, ARefusedWriteInPlaceLeavesItTorn) {
  Tensor& tensor = AddDirty("a");
  faults_.FailAll({.kind = FaultKind::kError, .error = EIO},
                  CallFilter::kWrites);
  transfers_.StartDrain(tensor, kDisk0, {});
  const std::vector<Arrival> arrivals = core_.SettleFor(absl::Seconds(1));
  ASSERT_EQ(arrivals.size(), 1u);
  EXPECT_EQ(arrivals[0].kind, Kind::kWriteFailed);
  EXPECT_TRUE(tensor.Dirty(kDramTier));
  EXPECT_EQ(tensor.resting()->generation, 0u);
  EXPECT_FALSE(tensor.Fetchable());
}

TEST_F(DrainTest, GivenUpOnceSealedNothingIsWritten) {
  Tensor& tensor = AddDirty("a");
  transfers_.StartDrain(tensor, kDisk1, Place(kDisk1));
  const std::vector<Sealed> sealed = RunTasks<Sealed>();
  ASSERT_EQ(sealed.size(), 1u);
  EXPECT_EQ(transfers_.GiveUp(transfers_.OnSealed(sealed[0])), kDisk1);
  EXPECT_TRUE(tensor.Idle(kDramTier));
  EXPECT_TRUE(tensor.Dirty(kDramTier));
  EXPECT_EQ(core_.resting.at(kDisk1).usage().used_bytes, 0);
  EXPECT_FALSE(transfers_.Has(tensor));
  EXPECT_THAT(core_.Settle(), IsEmpty());
  EXPECT_EQ(faults_.calls(CallFilter::kWrites), 0);
}

TEST_F(DrainTest, CancelledBeforeItIsIssuedItIsDirtyStill) {
  Tensor& tensor = AddDirty("a");
  transfers_.StartDrain(tensor, kDisk0, {});
  core_.Hear();
  transfers_.Cancel(tensor);
  const std::vector<Arrival> arrivals = core_.Settle();
  ASSERT_EQ(arrivals.size(), 1u);
  EXPECT_EQ(arrivals[0].kind, Kind::kWriteFailed);
  EXPECT_TRUE(absl::IsCancelled(arrivals[0].status));
  EXPECT_TRUE(tensor.Dirty(kDramTier));
  EXPECT_EQ(faults_.calls(CallFilter::kWrites), 0);
}

}  // namespace
}  // namespace terrace
