#include "tiers/device/device_transport.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "tests/tiers/device/device_tier_fixture.h"

namespace terrace {
namespace {

TEST_F(DeviceTransportTest, BytesOfAnySizeArriveAndNoOthersChange) {
  constexpr int64_t kOffset = 4096 + 7;
  constexpr int64_t kAround = 8 * kMiB;
  uint64_t seed = 0;
  for (const int64_t size :
       {int64_t{1}, int64_t{17}, int64_t{4095}, int64_t{4096}, int64_t{4097},
        kMiB - 1, kMiB, kMiB + 1, 3 * kMiB + 4096, 5 * kMiB + 12345}) {
    FillRandom(absl::MakeSpan(dram_).first(kAround), ++seed);
    Begin(0, kDown, 0, kAround);
    Finish();
    std::vector<std::byte> expected(dram_.begin(), dram_.begin() + kAround);
    FillRandom(absl::MakeSpan(dram_).first(kAround), ++seed);
    std::copy_n(dram_.begin() + kOffset, size, expected.begin() + kOffset);
    Begin(1, kDown, kOffset, size);
    Finish();
    ASSERT_TRUE(SameBytes(BytesOf(fake(), space_->At(0), kAround), expected))
        << size;
    const std::vector<std::byte> device = expected;
    expected.assign(dram_.begin(), dram_.begin() + kAround);
    std::fill_n(dram_.begin() + kOffset, size, std::byte{0});
    Begin(2, kUp, kOffset, size);
    Finish();
    ASSERT_TRUE(SameBytes(absl::MakeSpan(dram_).first(kAround), expected))
        << size;
    for (const auto& [tag, ends] : std::exchange(ends_, {})) {
      EXPECT_EQ(ends.size(), 1u);
      EXPECT_TRUE(ends[0].status.ok()) << ends[0].status;
    }
  }
}

TEST_F(DeviceTransportTest, FewPiecesAreInTheStreamWhateverWaits) {
  Begin(0, kDown, 0, 10 * kMiB, IoClass::kWriteBack);
  Begin(1, kDown, 10 * kMiB, 10 * kMiB, IoClass::kWriteBack);
  EXPECT_EQ(script().calls(DeviceCallKind::kToDevice), 3);
  EXPECT_EQ(transport_->stats().in_flight_bytes, 3 * kMiB);
  EXPECT_EQ(transport_->stats().in_flight_limit_bytes, 6 * kMiB);
  Pass(kMiBTime);
  EXPECT_EQ(script().calls(DeviceCallKind::kToDevice), 3);
  Poll();
  EXPECT_EQ(script().calls(DeviceCallKind::kToDevice), 4);
  Finish();
  EXPECT_EQ(script().calls(DeviceCallKind::kToDevice), 20);
}

TEST_F(DeviceTransportTest, DirectionsDoNotWaitForEachOther) {
  const absl::Time start = clock().Now();
  Begin(0, kDown, 0, 8 * kMiB);
  Begin(1, kUp, 8 * kMiB, 8 * kMiB);
  Finish();
  EXPECT_EQ(clock().Now() - start, 8 * kMiBTime);
}

TEST_F(DeviceTransportTest, ALinkThatIsSlowerBothWaysTakesWhatItTakes) {
  // Apart: 8 pieces each; half as fast while the other direction moves.
  VirtualDeviceOptions options = Timed();
  options.duplex_factor = 0.5;
  VirtualWorld world(options);
  auto space = DeviceSpace::Create(world.device(), 16 * kMiB);
  ASSERT_TRUE(space.ok());
  DeviceTransport transport(kHbm, *space, world.clock(), [] {},
                            {.piece_bytes = kMiB});
  transport.Begin(MoveOf(0, kDown, 0, 8 * kMiB));
  transport.Begin(MoveOf(1, kUp, 8 * kMiB, 8 * kMiB));
  const absl::Time start = world.clock().Now();
  std::vector<Moved> moved;
  EXPECT_TRUE(world.Await([&] {
    transport.Poll(&moved);
    return moved.size() == 2;
  }));
  EXPECT_GE(world.clock().Now() - start, 15 * kMiBTime);
  EXPECT_LE(world.clock().Now() - start, 16 * kMiBTime);
}

TEST_F(DeviceTransportTest, AMoveEndsOnceAndItsEndWakes) {
  Begin(0, kUp, 0, 2 * kMiB);
  EXPECT_EQ(wakes_, 0);
  EXPECT_TRUE(Poll().empty());
  EXPECT_EQ(transport_->pending(), 1);
  Pass(2 * kMiBTime);
  EXPECT_EQ(wakes_, 2);
  EXPECT_EQ(transport_->pending(), 1);  // until it is told
  EXPECT_EQ(Poll().size(), 1u);
  EXPECT_EQ(transport_->pending(), 0);
  EXPECT_TRUE(Poll().empty());
  EXPECT_EQ(transport_->NextEvent(), absl::InfiniteFuture());
}

TEST_F(DeviceTransportTest, WokenByItsEndsAloneItKeepsTheLinkBusy) {
  PollByItself();
  const absl::Time start = clock().Now();
  Begin(0, kDown, 0, 32 * kMiB, IoClass::kWriteBack);
  EXPECT_TRUE(clock().RunUntil([&] { return transport_->pending() == 0; }));
  EXPECT_EQ(clock().Now() - start, 32 * kMiBTime);
}

TEST_F(DeviceTransportTest, AClassIsFirstInFirstOut) {
  Begin(0, kUp, 0, 3 * kMiB, IoClass::kWriteBack);
  Begin(1, kUp, 3 * kMiB, 2 * kMiB, IoClass::kWriteBack);
  Begin(2, kUp, 5 * kMiB, kMiB, IoClass::kWriteBack);
  Finish();
  EXPECT_EQ(order_, "abc");
}

TEST_F(DeviceTransportTest, PromotedItOvertakes) {
  Begin(0, kDown, 0, 10 * kMiB, IoClass::kWriteBack);
  Begin(1, kDown, 10 * kMiB, 2 * kMiB, IoClass::kWriteBack);
  transport_->Promote(kDown, 1, IoClass::kDemand);
  transport_->Promote(kDown, 1, IoClass::kPrefetch);  // never less urgent
  transport_->Promote(kUp, 1, IoClass::kDemand);      // no such move
  transport_->Promote(kDown, 99, IoClass::kDemand);
  Finish();
  EXPECT_EQ(order_, "ba");
  // Behind the three that were in the stream.
  EXPECT_EQ(ended_at_[0] - ended_at_[1], 7 * kMiBTime);
}

TEST_F(DeviceTransportTest, CancelledAtAnyPointItEndsOnce) {
  constexpr int kPieces = 6;
  for (int ended = 0; ended <= kPieces; ++ended) {
    ends_.clear();
    const int64_t before = script().calls(DeviceCallKind::kToDevice);
    Begin(0, kDown, 0, kPieces * kMiB);
    Begin(1, kDown, 8 * kMiB, 2 * kMiB);
    for (int i = 0; i < ended; ++i) {
      Pass(kMiBTime);
      Poll();
    }
    transport_->Cancel(kDown, 0);
    transport_->Cancel(kDown, 0);
    transport_->Cancel(kUp, 1);     // not on this edge
    transport_->Cancel(kDown, 99);  // no such move
    Finish();
    EXPECT_TRUE(EndOf(1).ok()) << EndOf(1);
    const int begun = std::min(ended + 3, kPieces);
    EXPECT_EQ(script().calls(DeviceCallKind::kToDevice) - before, begun + 2);
    if (begun == kPieces) {  // nothing was left to drop
      EXPECT_TRUE(EndOf(0).ok()) << EndOf(0);
    } else {
      EXPECT_EQ(EndOf(0),
                absl::CancelledError("cancelled: fake:0, stream to the device, "
                                     "offset 0, 6291456 bytes"));
    }
  }
}

TEST_F(DeviceTransportTest, WhatIsCancelledBeforeItBeganEndsAtOnce) {
  Begin(0, kUp, 0, 8 * kMiB);
  Begin(1, kUp, 8 * kMiB, kMiB);
  transport_->Cancel(kUp, 1);
  EXPECT_EQ(transport_->NextEvent(), clock().Now());
  EXPECT_EQ(Poll().size(), 1u);
  EXPECT_TRUE(absl::IsCancelled(EndOf(1)));
  Finish();
}

TEST_F(DeviceTransportTest, BusyIsTheTimeInWhichPiecesAreUnderWay) {
  PollByItself();
  Begin(0, kDown, 0, 5 * kMiB);
  EXPECT_TRUE(clock().RunUntil([&] { return transport_->pending() == 0; }));
  Pass(absl::Seconds(5));
  Begin(1, kUp, 0, 2 * kMiB);
  EXPECT_TRUE(clock().RunUntil([&] { return transport_->pending() == 0; }));
  const IoPathStats stats = transport_->stats();
  EXPECT_EQ(stats.write_busy, 5 * kMiBTime);
  EXPECT_EQ(stats.read_busy, 2 * kMiBTime);
  EXPECT_EQ(stats.bytes_written, 5 * kMiB);
  EXPECT_EQ(stats.bytes_read, 2 * kMiB);
  EXPECT_EQ(stats.requests_written, 5);
  EXPECT_EQ(stats.in_flight_bytes, 0);
}

TEST_F(DeviceTransportTest, PiecesAreOfPinnedMemory) {
  fake().bytes().RequirePins();
  const std::shared_ptr<const void> mapping(dram_.data(), [](const void*) {});
  auto pinned =
      fake().Pin(mapping, absl::MakeSpan(dram_).first(8 * kMiB), 3 * kMiB);
  ASSERT_TRUE(pinned.ok()) << pinned.status();
  Begin(0, kDown, 0, 8 * kMiB);
  Finish();
  EXPECT_TRUE(fake().bytes().violations().empty());
}

TEST_F(DeviceTransportTest, DestroyedWithCopiesUnderWayItLeavesThemItsMemory) {
  Begin(0, kDown, 0, 8 * kMiB);
  transport_.reset();
  space_.reset();
  EXPECT_EQ(fake().bytes().used_bytes(), kBytes);
  Pass(absl::Seconds(1));
  EXPECT_EQ(wakes_, 0);
  EXPECT_EQ(script().calls(DeviceCallKind::kToDevice), 3);
}

TEST_F(DeviceTransportTest, DestroyedIdleItLeavesNothing) {
  Begin(0, kDown, 0, 8 * kMiB);
  Finish();
  transport_.reset();
  space_.reset();
  EXPECT_EQ(fake().bytes().used_bytes(), 0);
}

using DeviceTransportDeathTest = DeviceTransportTest;

TEST_F(DeviceTransportDeathTest, OnlyDramAndItsTierHaveEdges) {
  for (const Edge edge :
       {Edge{kHbm, kDisk0}, Edge{kDisk0, kHbm}, Edge{kDramTier, kDisk0},
        Edge{kDramTier, kDramTier}, Edge{kHbm, kHbm}}) {
    EXPECT_DEATH(Begin(0, edge, 0, kMiB), "internal error");
  }
}

TEST_F(DeviceTransportDeathTest, WhatNoTransferMayAskIsChecked) {
  EXPECT_DEATH(Begin(0, kDown, kBytes - kMiB + 1, kMiB), "internal error");
  EXPECT_DEATH(Begin(0, kDown, 0, 0), "internal error");
  Begin(0, kDown, 0, kMiB);
  EXPECT_DEATH(Begin(0, kDown, kMiB, kMiB), "internal error");  // its tag
  Move move = MoveOf(1, kUp, 0, kMiB);
  move.data = nullptr;
  EXPECT_DEATH(transport_->Begin(move), "internal error");
  move = MoveOf(1, kUp, 0, kMiB);
  move.to.size_bytes = 2 * kMiB;
  EXPECT_DEATH(transport_->Begin(move), "internal error");
  Finish();
}

}  // namespace
}  // namespace terrace
