// Moves between a device and memory, and those in two legs beyond it.
#include "tests/runtime/motion/device_motion_fixture.h"

namespace terrace {
namespace {

TEST_F(DeviceTransferTest, WhatIsInMemoryIsCopiedToTheDevice) {
  Tensor& tensor = core_.Add("a");
  core_.Write(tensor);
  FetchToDevice(tensor);
  EXPECT_FALSE(tensor.Idle(kDramTier));  // it is read
  EXPECT_TRUE(tensor.being_read());
  const Arrival arrival = One(core_.Settle());
  EXPECT_EQ(arrival.kind, Arrival::Kind::kWhole);
  EXPECT_TRUE(arrival.edge == (Edge{kDramTier, kHbmTier}));
  EXPECT_TRUE(HasItsBytes(tensor, OnDevice(tensor)));
  EXPECT_TRUE(tensor.Idle(kDramTier) && tensor.Idle(kHbmTier));
  EXPECT_TRUE(tensor.Dirty(kDramTier));
  EXPECT_FALSE(tensor.Dirty(kHbmTier));  // memory has it
  EXPECT_EQ(core_.links.moved({kDramTier, kHbmTier}), kCopyBytes);
}

TEST_F(DeviceTransferTest, WhatIsOnTheDeviceIsCopiedToMemory) {
  Tensor& tensor = AddDirty("a");
  EXPECT_TRUE(tensor.Dirty(kHbmTier));
  core_.Fetch(tensor);
  EXPECT_TRUE(HasItsBytes(tensor, core_.Payload(tensor)));
  EXPECT_FALSE(tensor.Dirty(kHbmTier));
  EXPECT_TRUE(tensor.Dirty(kDramTier));
  EXPECT_FALSE(tensor.being_read());
  EXPECT_EQ(core_.links.moved({kHbmTier, kDramTier}), kCopyBytes);
}

TEST_F(DeviceTransferTest, TheDeviceIsNearerToMemoryThanADisk) {
  Tensor& tensor = AddResting("a");
  FetchToDevice(tensor);
  core_.Settle();
  const int64_t calls = disk().calls();
  core_.Fetch(tensor);
  EXPECT_EQ(disk().calls(), calls);
  EXPECT_TRUE(HasItsBytes(tensor, core_.Payload(tensor)));
}

TEST_F(DeviceTransferTest, AFetchFromADiskPassesThroughStaging) {
  Tensor& tensor = AddResting("a");
  FetchToDevice(tensor);
  EXPECT_TRUE(HasSlot(StagingRoom::Way::kUp));  // it begins with the next turn
  core_.Poll();
  EXPECT_FALSE(HasSlot(StagingRoom::Way::kUp));
  EXPECT_EQ(tensor.at(kDramTier), nullptr);  // the slot is no copy
  const Arrival arrival = One(core_.Settle());
  EXPECT_EQ(arrival.kind, Arrival::Kind::kWhole);
  EXPECT_TRUE(arrival.edge == (Edge{kDisk, kHbmTier}));
  EXPECT_TRUE(HasItsBytes(tensor, OnDevice(tensor)));
  EXPECT_EQ(tensor.at(kDramTier), nullptr);
  EXPECT_TRUE(HasSlot(StagingRoom::Way::kUp));
  EXPECT_FALSE(core_.transfers.Has(tensor));
  EXPECT_TRUE(CheckInvariants(tensor).ok());
}

TEST_F(DeviceTransferTest, AWriteBackToADiskPassesThroughStaging) {
  Tensor& tensor = AddDirty("a");
  DrainToDisk(tensor);
  EXPECT_FALSE(HasSlot(StagingRoom::Way::kDown));
  const Arrival arrival = One(core_.Settle());
  EXPECT_EQ(arrival.kind, Arrival::Kind::kWritten);
  EXPECT_TRUE(arrival.edge == (Edge{kHbmTier, kDisk}));
  EXPECT_TRUE(HasSlot(StagingRoom::Way::kDown));
  EXPECT_TRUE(tensor.Fetchable());
  EXPECT_TRUE(tensor.Delivered(kHbmTier));  // until it is dropped
  core_.others.residencies.front()->Drop(tensor);
  core_.Fetch(tensor);  // checked against the header made in staging
  EXPECT_TRUE(HasItsBytes(tensor, core_.Payload(tensor)));
}

TEST_F(DeviceTransferTest, ThoseAskedForHaveTheSlotFirst) {
  Tensor& a = AddResting("a");
  Tensor& b = AddResting("b");
  Tensor& c = AddResting("c");
  FetchToDevice(a, IoClass::kPrefetch);
  FetchToDevice(b, IoClass::kPrefetch);
  FetchToDevice(c);
  core_.transfers.Promote(b, IoClass::kDemand);
  std::vector<const Tensor*> order;
  for (const Arrival& each : core_.Settle()) order.push_back(each.tensor);
  EXPECT_EQ(order, (std::vector<const Tensor*>{&b, &c, &a}));
}

TEST_F(DeviceTransferTest, AFetchThatWaitsCanBeCancelled) {
  Tensor& a = AddResting("a");
  Tensor& b = AddResting("b");
  FetchToDevice(a);
  core_.Poll();
  FetchToDevice(b);
  core_.transfers.Cancel(b);
  const std::vector<Arrival> arrivals = core_.Settle();
  ASSERT_EQ(arrivals.size(), 2u);
  EXPECT_EQ(arrivals[0].tensor, &b);
  EXPECT_TRUE(absl::IsCancelled(arrivals[0].status));
  EXPECT_EQ(b.at(kHbmTier), nullptr);
  EXPECT_EQ(arrivals[1].kind, Arrival::Kind::kWhole);
}

TEST_F(DeviceTransferTest, AFetchWithoutStagingFails) {
  Tensor& tensor = AddResting("a");
  FetchToDevice(tensor);
  lease_ = {};
  const Arrival arrival = One(core_.Settle());
  EXPECT_EQ(arrival.kind, Arrival::Kind::kFillFailed);
  EXPECT_TRUE(absl::IsCancelled(arrival.status)) << arrival.status;
}

TEST_F(DeviceTransferTest, ADiskThatFailsEndsTheFetchInItsFirstLeg) {
  Tensor& tensor = AddResting("a");
  disk().FailAll({.kind = FaultKind::kError, .error = ENODEV},
                 CallFilter::kReads);
  FetchToDevice(tensor);
  const Arrival arrival = One(core_.Settle());
  EXPECT_NE(arrival.kind, Arrival::Kind::kWhole);
  EXPECT_FALSE(arrival.status.ok());
  EXPECT_EQ(tensor.at(kHbmTier), nullptr);
  EXPECT_TRUE(HasSlot(StagingRoom::Way::kUp));
}

TEST_F(DeviceTransferTest, WhatIsFlippedOnTheDiskIsReadOnceMore) {
  Tensor& tensor = AddResting("a");
  disk().FailCall(1, {.kind = FaultKind::kBitFlip}, CallFilter::kReads);
  FetchToDevice(tensor);
  EXPECT_EQ(One(core_.Settle()).kind, Arrival::Kind::kWhole);
  EXPECT_TRUE(HasItsBytes(tensor, OnDevice(tensor)));
}

TEST_F(DeviceTransferTest, ADeviceThatFailsEndsTheFetchInItsSecondLeg) {
  Tensor& tensor = AddResting("a");
  // Of a write to the device nothing is lost.
  device().Fail(0, absl::DataLossError("gone"));
  FetchToDevice(tensor);
  const Arrival arrival = One(core_.Settle());
  EXPECT_EQ(arrival.kind, Arrival::Kind::kFillFailed);
  EXPECT_TRUE(absl::IsUnavailable(arrival.status)) << arrival.status;
  EXPECT_TRUE(HasSlot(StagingRoom::Way::kUp));
  EXPECT_TRUE(tensor.Fetchable());
  FetchToDevice(tensor);
  EXPECT_EQ(One(core_.Settle()).kind, Arrival::Kind::kWhole);
}

TEST_F(DeviceTransferTest, ADeviceThatFailsEndsTheWriteBackInItsFirstLeg) {
  Tensor& tensor = AddDirty("a");
  device().Fail(0, absl::UnavailableError("not now"));
  DrainToDisk(tensor);
  const Arrival arrival = One(core_.Settle());
  EXPECT_EQ(arrival.kind, Arrival::Kind::kWriteFailed);
  EXPECT_TRUE(arrival.edge == (Edge{kHbmTier, kDramTier}));
  EXPECT_TRUE(tensor.Dirty(kHbmTier) && tensor.Idle(kHbmTier));
  EXPECT_TRUE(HasSlot(StagingRoom::Way::kDown));
  EXPECT_EQ(core_.reports.back().given_up, kDisk);
  EXPECT_EQ(disk().calls(), 0);
}

TEST_F(DeviceTransferTest, ADiskThatFailsLeavesTheDevicesCopyDirty) {
  Tensor& tensor = AddDirty("a");
  disk().FailAll({.kind = FaultKind::kError, .error = ENODEV},
                 CallFilter::kWrites);
  DrainToDisk(tensor);
  const Arrival arrival = One(core_.Settle());
  EXPECT_EQ(arrival.kind, Arrival::Kind::kWriteFailed);
  EXPECT_TRUE(arrival.edge == (Edge{kHbmTier, kDisk}));
  EXPECT_TRUE(tensor.Dirty(kHbmTier) && tensor.Idle(kHbmTier));
  EXPECT_TRUE(HasSlot(StagingRoom::Way::kDown));
  EXPECT_EQ(core_.reports.back().given_up, kNoTier);
}

TEST_F(DeviceTransferTest, WhatADeviceLosesIsLostIfItIsOnlyThere) {
  Tensor& tensor = AddDirty("a");
  device().Fail(0, absl::DataLossError("the device is gone"));
  DrainToDisk(tensor);
  const Arrival drain = One(core_.Settle());
  EXPECT_EQ(drain.kind, Arrival::Kind::kLost);
  EXPECT_TRUE(drain.source_is_gone);

  Tensor& other = AddDirty("b");
  device().Fail(0, absl::DataLossError("the device is gone"));
  core_.transfers.StartFill(other, core_.residency.FindRoom(other),
                            IoClass::kDemand);
  const Arrival fill = One(core_.Settle());
  EXPECT_EQ(fill.kind, Arrival::Kind::kLost);
  EXPECT_TRUE(fill.source_is_gone);
  core_.residency.OnGone(other, nullptr, {});
}

TEST_F(DeviceTransferTest, WhatADeviceLosesIsNotLostIfADiskHasIt) {
  Tensor& tensor = AddResting("a");
  FetchToDevice(tensor);
  core_.Settle();
  device().Fail(0, absl::DataLossError("the device is gone"));
  core_.transfers.StartFill(tensor, core_.residency.FindRoom(tensor),
                            IoClass::kDemand);
  const Arrival fill = One(core_.Settle());
  EXPECT_EQ(fill.kind, Arrival::Kind::kFillFailed);
  EXPECT_TRUE(absl::IsUnavailable(fill.status)) << fill.status;
  EXPECT_TRUE(fill.source_is_gone);
  core_.residency.OnGone(tensor, nullptr, {});
  core_.others.residencies.front()->Drop(tensor);
  core_.Fetch(tensor);
  EXPECT_TRUE(HasItsBytes(tensor, core_.Payload(tensor)));
}

}  // namespace
}  // namespace terrace
