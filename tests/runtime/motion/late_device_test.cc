// Moves of a device past their deadlines: what they keep, and until when.
#include "gmock/gmock.h"
#include "tests/runtime/motion/device_motion_fixture.h"

namespace terrace {
namespace {

class LateDeviceTest : public DeviceTransferTest {
 protected:
  absl::Status Hope(StagingRoom::Way way) {
    return core_.others.staging.Hope(way, kCopyBytes);
  }
  std::vector<Arrival> LetGo() {
    held().release = true;
    disk().Release();
    return core_.Settle();
  }
};

TEST_F(LateDeviceTest, ADiskThatIsLateKeepsTheSlotAlone) {
  Tensor& tensor = AddResting("a");
  const int64_t free_bytes =
      FreeBytes(core_.others.residencies.front()->tier());
  disk().FailCall(1, {.kind = FaultKind::kNever}, CallFilter::kReads);
  FetchToDevice(tensor);
  const Arrival arrival = One(core_.SettleFor(absl::Seconds(3)));
  EXPECT_TRUE(arrival.late);
  EXPECT_EQ(arrival.late_room, nullptr);  // the device's room is untouched
  core_.others.residencies.front()->OnGone(tensor, nullptr, {});
  EXPECT_EQ(FreeBytes(core_.others.residencies.front()->tier()), free_bytes);
  EXPECT_TRUE(absl::IsDeadlineExceeded(Hope(StagingRoom::Way::kUp)));
  EXPECT_THAT(std::string(Hope(StagingRoom::Way::kUp).message()),
              testing::HasSubstr("a read of disk0/state"));
  FetchToDevice(tensor);  // which cannot pass
  EXPECT_TRUE(absl::IsDeadlineExceeded(One(core_.Settle()).status));
  core_.others.residencies.front()->OnGone(tensor, nullptr, {});
  EXPECT_TRUE(core_.transfers.Has(tensor));
  EXPECT_TRUE(LetGo().empty());
  EXPECT_FALSE(core_.transfers.Has(tensor));
  EXPECT_TRUE(HasSlot(StagingRoom::Way::kUp));
}

TEST_F(LateDeviceTest, ADeviceThatIsLateKeepsItsRoomAndTheSlot) {
  Tensor& tensor = AddResting("a");
  held().next = 1;
  FetchToDevice(tensor);
  const Arrival arrival = One(core_.Settle());
  EXPECT_TRUE(arrival.late);
  ASSERT_NE(arrival.late_room, nullptr);
  EXPECT_EQ(arrival.late_room->tier(), kHbmTier);
  EXPECT_EQ(core_.transfers.late_bytes(kHbmTier), kCopyBytes);
  EXPECT_EQ(core_.links.quarantined_bytes(), kCopyBytes);
  EXPECT_EQ(core_.transfers.late_bytes(kDramTier), 0);
  EXPECT_THAT(std::string(Hope(StagingRoom::Way::kUp).message()),
              testing::HasSubstr("a write of cuda:0"));
  core_.others.residencies.front()->OnGone(tensor, arrival.late_room, {});
  EXPECT_TRUE(LetGo().empty());
  EXPECT_EQ(core_.transfers.late_bytes(kHbmTier), 0);
  EXPECT_EQ(core_.links.quarantined_bytes(), 0);
  EXPECT_TRUE(HasSlot(StagingRoom::Way::kUp));
}

TEST_F(LateDeviceTest, ALateWriteBackLeavesTheDevicesCopyReadable) {
  Tensor& tensor = AddDirty("a");
  held().next = 1;
  DrainToDisk(tensor);
  const Arrival arrival = One(core_.Settle());
  EXPECT_EQ(arrival.kind, Arrival::Kind::kWriteFailed);
  EXPECT_TRUE(arrival.late);
  EXPECT_EQ(tensor.drain(), Drain::kLate);
  EXPECT_TRUE(tensor.Delivered(kHbmTier));
  EXPECT_TRUE(absl::IsDeadlineExceeded(Hope(StagingRoom::Way::kDown)));
  const Arrival released = One(LetGo());  // whole by now, but too late
  EXPECT_EQ(released.kind, Arrival::Kind::kWriteFailed);
  EXPECT_TRUE(absl::IsCancelled(released.status));
  EXPECT_EQ(core_.reports.back().given_up, kDisk);
  EXPECT_EQ(tensor.drain(), Drain::kNone);
  EXPECT_TRUE(tensor.Dirty(kHbmTier));
  DrainToDisk(tensor);
  EXPECT_EQ(One(core_.Settle()).kind, Arrival::Kind::kWritten);
}

TEST_F(LateDeviceTest, WhatALateCopyReadsStaysUntilItsEnd) {
  Tensor& tensor = AddDirty("a");
  held().next = 1;
  core_.transfers.StartFill(tensor, core_.residency.FindRoom(tensor),
                            IoClass::kWriteBack);
  const Arrival arrival = One(core_.Settle());
  ASSERT_NE(arrival.late_room, nullptr);
  EXPECT_EQ(core_.transfers.late_bytes(kDramTier), kCopyBytes);
  core_.residency.OnGone(tensor, arrival.late_room, {});
  EXPECT_TRUE(tensor.being_read());
  EXPECT_FALSE(tensor.Idle(kHbmTier));
  EXPECT_DEATH(tensor.Drop(kHbmTier), "internal error");
  core_.Fetch(tensor);  // once more, into other room
  EXPECT_TRUE(tensor.being_read());
  LetGo();
  EXPECT_FALSE(tensor.being_read());
  EXPECT_EQ(core_.transfers.late_bytes(kDramTier), 0);
}

}  // namespace
}  // namespace terrace
