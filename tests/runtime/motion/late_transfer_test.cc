// Transfers past their deadlines keep their room until the device lets go.
#include <string>
#include <utility>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/motion/transfer_fixture.h"

namespace terrace {
namespace {

using testing::Each;
using testing::IsEmpty;

using Kind = Arrival::Kind;

class LateTransferTest : public TransferTest {
 protected:
  // A device that does not answer, until the test says otherwise.
  void Hang(CallFilter filter, int64_t times = 1) {
    faults_.FailCall(1, {.kind = FaultKind::kNever}, filter, times);
  }
  // Its one move runs out of time.
  Arrival RunOut() {
    std::vector<Arrival> arrivals = core_.SettleFor(absl::Seconds(3));
    TERRACE_CHECK(arrivals.size() == 1);
    EXPECT_TRUE(absl::IsDeadlineExceeded(arrivals[0].status));
    EXPECT_TRUE(arrivals[0].late);
    return std::move(arrivals[0]);
  }
  std::vector<Arrival> LetGo() {
    faults_.Release();
    return core_.Settle();
  }
};

TEST_F(LateTransferTest, ALateFillTakesItsRoomAlong) {
  Tensor& tensor = AddResting("a");
  Hang(CallFilter::kReads);
  StartFill(tensor);
  const Arrival arrival = RunOut();
  EXPECT_EQ(arrival.kind, Kind::kFillFailed);
  ASSERT_NE(arrival.late_room, nullptr);
  EXPECT_EQ(arrival.late_room->from(), &core_.dram);
  EXPECT_EQ(arrival.late_room->extent(), (Extent{0, kCopyBytes}));
  EXPECT_EQ(tensor.at(kDramTier), nullptr);
  EXPECT_TRUE(tensor.Fetchable());
  EXPECT_TRUE(transfers_.Has(tensor));
  EXPECT_EQ(transfers_.late_bytes(), kCopyBytes);
  EXPECT_EQ(core_.dram.usage().used_bytes, kCopyBytes);

  EXPECT_THAT(LetGo(), IsEmpty());  // its tensor has nothing to do with it
  EXPECT_TRUE(core_.reports.back().released);
  EXPECT_FALSE(transfers_.Has(tensor));
  EXPECT_EQ(transfers_.late_bytes(), 0);
  EXPECT_EQ(core_.dram.usage().used_bytes, 0);
}

TEST_F(LateTransferTest, ItsTensorMayBeFetchedAgainMeanwhile) {
  Tensor& tensor = AddResting("a");
  Hang(CallFilter::kReads);
  StartFill(tensor);
  RunOut();
  StartFill(tensor);
  const std::vector<Arrival> arrivals = core_.Settle();
  ASSERT_EQ(arrivals.size(), 1u);
  EXPECT_EQ(arrivals[0].kind, Kind::kWhole);
  EXPECT_EQ(tensor.at(kDramTier)->place.extent(),
            (Extent{kCopyBytes, kCopyBytes}));
  EXPECT_TRUE(transfers_.Has(tensor));  // the late one
  LetGo();
  EXPECT_FALSE(transfers_.Has(tensor));
  EXPECT_THAT(core_.Payload(tensor), Each(std::byte{1}));
}

TEST_F(LateTransferTest, ATensorIsRidOfItsLateFillsWithTheLast) {
  Tensor& tensor = AddResting("a");
  Hang(CallFilter::kReads, 2);
  StartFill(tensor);
  RunOut();
  StartFill(tensor);
  RunOut();
  EXPECT_EQ(transfers_.late_bytes(), 2 * kCopyBytes);
  LetGo();
  EXPECT_FALSE(transfers_.Has(tensor));
  EXPECT_EQ(transfers_.late_bytes(), 0);
}

TEST_F(LateTransferTest, ASlotOfAWindowIsNotCountedTwice) {
  Tensor& tensor = AddResting("a");
  Customer& customer = core_.Open(kPage, 2);
  Hang(CallFilter::kReads);
  transfers_.StartFill(tensor, customer.window->Take(1, tensor, kCopyBytes),
                       IoClass::kDemand);
  const Arrival arrival = RunOut();
  EXPECT_EQ(arrival.late_room->from(), customer.window);
  EXPECT_EQ(transfers_.late_bytes(), 0);
  EXPECT_TRUE(customer.window->taken(1));
  LetGo();
  EXPECT_FALSE(customer.window->taken(1));
}

TEST_F(LateTransferTest, WhatIsWaitedForIsSaid) {
  core_.Add("before");
  Tensor& tensor = AddResting("a");
  Hang(CallFilter::kReads);
  StartFill(tensor);
  const Arrival arrival = RunOut();
  EXPECT_EQ(transfers_.LateFetch(*arrival.late_room),
            absl::DeadlineExceededError(
                "a slot is quarantined: a read of disk0/state, offset 8192, "
                "8192 bytes, is past its deadline and still under way"));
  EXPECT_TRUE(transfers_.LateFetch(Reservation()).ok());  // of no such
}

TEST_F(LateTransferTest, ALateDrainLeavesItsCopyAndThenItIsWrittenAfterAll) {
  Tensor& tensor = AddDirty("a");
  Hang(CallFilter::kWrites);
  transfers_.StartDrain(tensor, kDisk1, Place(kDisk1));
  const Arrival arrival = RunOut();
  EXPECT_EQ(arrival.kind, Kind::kWriteFailed);
  EXPECT_EQ(arrival.late_room, nullptr);
  EXPECT_EQ(tensor.drain(), Drain::kLate);
  EXPECT_TRUE(tensor.Delivered(kDramTier));
  EXPECT_TRUE(transfers_.Has(tensor));
  EXPECT_EQ(transfers_.DrainTier(tensor), kDisk1);
  EXPECT_EQ(transfers_.Of(tensor).below, (Extent{0, kCopyBytes}));
  EXPECT_EQ(transfers_.second_bytes(kDisk1), kCopyBytes);
  EXPECT_EQ(transfers_.late_bytes(), 0);

  const std::vector<Arrival> arrivals = LetGo();
  ASSERT_EQ(arrivals.size(), 1u);
  EXPECT_EQ(arrivals[0].kind, Kind::kWritten);
  EXPECT_FALSE(arrivals[0].late);
  EXPECT_TRUE(arrivals[0].moved);
  EXPECT_EQ(tensor.resting()->place.tier(), kDisk1);
  EXPECT_TRUE(tensor.Idle(kDramTier));
  EXPECT_FALSE(transfers_.Has(tensor));
}

TEST_F(LateTransferTest, TheTranscriptTellsLateFromReleased) {
  Tensor& tensor = AddResting("a");
  Hang(CallFilter::kReads);
  StartFill(tensor);
  RunOut();
  LetGo();
  ASSERT_EQ(core_.transcript.size(), 3u);
  EXPECT_EQ(core_.transcript[0].event, TranscriptEvent::kMoveStarted);
  EXPECT_EQ(core_.transcript[1].event, TranscriptEvent::kMoveEnded);
  EXPECT_EQ(core_.transcript[1].code, absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(core_.transcript[2].event, TranscriptEvent::kMoveReleased);
  for (const TranscriptLine& line : core_.transcript) {
    EXPECT_EQ(line.tensor, tensor.id.value);
    EXPECT_EQ(line.from, 1);
    EXPECT_EQ(line.to, 0);
    EXPECT_EQ(line.generation, 1u);
  }
}

}  // namespace
}  // namespace terrace
