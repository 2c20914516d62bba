// What goes wrong with a device, and what becomes of moves.
#include <algorithm>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tiers/device/device_tier_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class DeviceFaultsTest : public DeviceTransportTest {};

const absl::Status kError = absl::UnavailableError("as the script says");

TEST_F(DeviceFaultsTest, EachPieceFailsInTurnAndTheMoveEndsOnce) {
  constexpr int kPieces = 6;
  for (const Edge edge : {kUp, kDown}) {
    const auto kind = edge.to == kDramTier ? DeviceCallKind::kToHost
                                           : DeviceCallKind::kToDevice;
    const std::string named = edge.to == kDramTier
                                  ? "fake:0, stream from the device, offset 0, "
                                  : "fake:0, stream to the device, offset 0, ";
    for (int piece = 0; piece < kPieces; ++piece) {
      for (const bool at_once : {true, false}) {
        ends_.clear();
        script().Fail(kind, piece,
                      at_once ? DeviceFault{.at_once = kError}
                              : DeviceFault{.at_end = kError});
        const int64_t before = script().calls(kind);
        Begin(0, edge, 0, kPieces * kMiB);
        Begin(1, edge, 8 * kMiB, 2 * kMiB);
        Finish();
        EXPECT_EQ(EndOf(0), absl::UnavailableError(
                                named + "6291456 bytes: as the script says"))
            << piece;
        EXPECT_TRUE(EndOf(1).ok()) << EndOf(1);
        // What was not begun by then never was.
        const int begun = at_once ? piece + 1 : std::min(piece + 3, kPieces);
        EXPECT_EQ(script().calls(kind) - before, begun + 2);
        EXPECT_EQ(transport_->stats().in_flight_bytes, 0);
      }
    }
  }
}

TEST_F(DeviceFaultsTest, TheFirstErrorDecides) {
  script().Fail(DeviceCallKind::kToDevice, 0, {.at_end = kError});
  script().Fail(DeviceCallKind::kToDevice, 1,
                {.at_end = absl::InternalError("later")});
  Begin(0, kDown, 0, 4 * kMiB);
  Finish();
  EXPECT_TRUE(absl::IsUnavailable(EndOf(0))) << EndOf(0);
}

TEST_F(DeviceFaultsTest, AfterAFailureItMayBeTriedAgain) {
  FillRandom(absl::MakeSpan(dram_).first(2 * kMiB), 1);
  script().Fail(DeviceCallKind::kToDevice, 1, {.at_end = kError});
  Begin(0, kDown, 0, 2 * kMiB);
  Finish();
  Begin(1, kDown, 0, 2 * kMiB);
  Finish();
  EXPECT_TRUE(EndOf(1).ok());
  EXPECT_TRUE(SameBytes(BytesOf(fake(), space_->At(0), 2 * kMiB),
                        absl::MakeSpan(dram_).first(2 * kMiB)));
}

// The source of a move to the device is whole, whatever the device says.
TEST_F(DeviceFaultsTest, OnlyWhatComesFromTheDeviceCanBeLost) {
  const absl::Status lost = absl::DataLossError("an uncorrectable error");
  script().Fail(DeviceCallKind::kToDevice, 0, {.at_end = lost});
  script().Fail(DeviceCallKind::kToHost, 0, {.at_end = lost});
  Begin(0, kDown, 0, kMiB);
  Begin(1, kUp, kMiB, kMiB);
  Finish();
  EXPECT_TRUE(absl::IsUnavailable(EndOf(0))) << EndOf(0);
  EXPECT_TRUE(absl::IsDataLoss(EndOf(1))) << EndOf(1);
}

TEST_F(DeviceFaultsTest, ADeviceThatDoesNotCallIsLookedAt) {
  PollByItself();
  for (int call = 0; call < 6; ++call) {
    script().Fail(DeviceCallKind::kOnDone, call, {.at_once = kError});
  }
  const absl::Time start = clock().Now();
  Begin(0, kDown, 0, 6 * kMiB);
  EXPECT_TRUE(clock().RunUntil([&] { return transport_->pending() == 0; }));
  EXPECT_TRUE(EndOf(0).ok()) << EndOf(0);
  EXPECT_EQ(wakes_, 0);
  EXPECT_LE(clock().Now() - start, absl::Milliseconds(5));
}

TEST_F(DeviceFaultsTest, AStickyErrorEndsTheTierWithItsCode) {
  PollByItself();
  Begin(0, kDown, 0, 8 * kMiB);         // three pieces under way
  Begin(1, kDown, 8 * kMiB, 8 * kMiB);  // none
  Begin(2, kUp, 16 * kMiB, kMiB);
  Pass(kMiBTime / 2);
  const int64_t before = script().calls(DeviceCallKind::kToDevice);
  fake().Break("cudaErrorIllegalAddress (700)");
  // Its calls do not come; it is looked at.
  EXPECT_TRUE(clock().RunUntil([&] { return transport_->pending() == 0; },
                               clock().Now() + absl::Seconds(1)));
  for (const uint64_t tag : {0u, 1u, 2u}) {
    EXPECT_TRUE(absl::IsUnavailable(EndOf(tag))) << EndOf(tag);
    EXPECT_THAT(std::string(EndOf(tag).message()),
                HasSubstr("fake:0: cudaErrorIllegalAddress (700)"));
  }
  Begin(3, kUp, 0, kMiB);
  EXPECT_EQ(transport_->NextEvent(), clock().Now());
  Poll();
  EXPECT_EQ(EndOf(3), absl::UnavailableError(
                          "fake:0, stream from the device, offset 0, 1048576 "
                          "bytes: fake:0: cudaErrorIllegalAddress (700)"));
  EXPECT_EQ(script().calls(DeviceCallKind::kToDevice), before);
  EXPECT_EQ(transport_->stats().in_flight_bytes, 0);
}

TEST_F(DeviceFaultsTest, ACancelAfterAFailureDoesNotHideIt) {
  script().Fail(DeviceCallKind::kToDevice, 0, {.at_end = kError});
  Begin(0, kDown, 0, 6 * kMiB);
  Pass(kMiBTime);
  Poll();  // it failed; two pieces are under way still
  transport_->Cancel(kDown, 0);
  Finish();
  EXPECT_TRUE(absl::IsUnavailable(EndOf(0))) << EndOf(0);
}

}  // namespace
}  // namespace terrace
