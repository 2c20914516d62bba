// Transfers up: moved, then checked; wrong bytes are fetched once more.
#include <string>

#include "base/io_fault.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/motion/transfer_fixture.h"
#include "tiers/extent_header.h"

namespace terrace {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::IsEmpty;

using FillTest = TransferTest;
using Kind = Arrival::Kind;

// One bit of the payload, on the way up.
Fault FlippedBit() {
  Fault fault;
  fault.kind = FaultKind::kBitFlip;
  fault.flipped_byte = kTensorHeaderBytes + 5;
  return fault;
}

TEST_F(FillTest, ItIsMovedAndThenChecked) {
  Tensor& tensor = AddResting("a");
  StartFill(tensor);
  EXPECT_EQ(tensor.at(kDramTier)->state, CopyState::kFilling);
  EXPECT_TRUE(transfers_.Has(tensor));
  EXPECT_EQ(core_.links.pending(), 1);
  EXPECT_EQ(transfers_.tasks(), 0);
  EXPECT_THAT(core_.Poll(), IsEmpty());  // issues it
  EXPECT_THAT(core_.Poll(), IsEmpty());
  EXPECT_EQ(tensor.at(kDramTier)->state, CopyState::kChecking);
  EXPECT_EQ(core_.links.pending(), 0);
  EXPECT_EQ(transfers_.tasks(), 1);
  const std::vector<Arrival> arrivals = core_.Hear();
  ASSERT_EQ(arrivals.size(), 1u);
  EXPECT_EQ(arrivals[0].kind, Kind::kWhole);
  EXPECT_EQ(arrivals[0].tensor, &tensor);
  EXPECT_EQ(arrivals[0].edge.from, kDisk0);
  EXPECT_EQ(arrivals[0].edge.to, kDramTier);
  EXPECT_TRUE(tensor.Idle(kDramTier));
  EXPECT_THAT(core_.Payload(tensor), Each(std::byte{1}));
  EXPECT_EQ(transfers_.tasks(), 0);
  EXPECT_FALSE(transfers_.Has(tensor));
}

TEST_F(FillTest, TheMovesReportIsOfItsEdge) {
  Tensor& tensor = AddResting("a");
  StartFill(tensor);
  core_.Settle();
  ASSERT_EQ(core_.reports.size(), 1u);
  EXPECT_EQ(core_.reports[0].edge.from, kDisk0);
  EXPECT_EQ(core_.reports[0].edge.to, kDramTier);
  EXPECT_TRUE(core_.reports[0].status.ok());
  EXPECT_FALSE(core_.reports[0].late);
  EXPECT_FALSE(core_.reports[0].released);
}

TEST_F(FillTest, ADeviceThatRefusesLeavesNoCopyAndNoRoomTaken) {
  Tensor& tensor = AddResting("a");
  faults_.FailAll({.kind = FaultKind::kError, .error = ENODEV});
  StartFill(tensor);
  const std::vector<Arrival> arrivals = core_.SettleFor(absl::Seconds(2));
  ASSERT_EQ(arrivals.size(), 1u);
  EXPECT_EQ(arrivals[0].kind, Kind::kFillFailed);
  EXPECT_EQ(IoFaultOf(arrivals[0].status).error, ENODEV);
  EXPECT_FALSE(arrivals[0].late);
  EXPECT_EQ(arrivals[0].late_room, nullptr);
  EXPECT_EQ(tensor.at(kDramTier), nullptr);
  EXPECT_TRUE(tensor.Fetchable());
  EXPECT_EQ(core_.dram.usage().used_bytes, 0);
  EXPECT_FALSE(transfers_.Has(tensor));
}

TEST_F(FillTest, WhatIsCutOffBelowIsLostAndNamed) {
  Tensor& tensor = AddResting("a");
  faults_.FailAll({.kind = FaultKind::kZero}, CallFilter::kReads);
  StartFill(tensor);
  const std::vector<Arrival> arrivals = core_.SettleFor(absl::Seconds(2));
  ASSERT_EQ(arrivals.size(), 1u);
  EXPECT_EQ(arrivals[0].kind, Kind::kLost);
  EXPECT_TRUE(absl::IsDataLoss(arrivals[0].status)) << arrivals[0].status;
  EXPECT_THAT(std::string(arrivals[0].status.message()),
              HasSubstr("tensor 'a': read failed: disk0/state, offset 0"));
  EXPECT_EQ(tensor.at(kDramTier), nullptr);
}

TEST_F(FillTest, WhatWasFlippedOnTheWayIsFetchedOnceMore) {
  Tensor& tensor = AddResting("a");
  faults_.FailCall(1, FlippedBit(), CallFilter::kReads);
  StartFill(tensor, IoClass::kPrefetch);
  const uint64_t first = tensor.transfer();
  const std::vector<Arrival> arrivals = core_.Settle();
  ASSERT_EQ(arrivals.size(), 1u);
  EXPECT_EQ(arrivals[0].kind, Kind::kWhole);
  EXPECT_THAT(core_.Payload(tensor), Each(std::byte{1}));
  EXPECT_GT(tensor.transfer(), first);
  // Started, ended, started, ended; again before what nobody waits for.
  ASSERT_EQ(core_.transcript.size(), 4u);
  EXPECT_EQ(core_.transcript[0].io_class, static_cast<int>(IoClass::kPrefetch));
  EXPECT_EQ(core_.transcript[2].event, TranscriptEvent::kMoveStarted);
  EXPECT_EQ(core_.transcript[2].io_class, static_cast<int>(IoClass::kForeseen));
}

TEST_F(FillTest, WhatIsFetchedOnceMoreStaysADemand) {
  Tensor& tensor = AddResting("a");
  faults_.FailCall(1, FlippedBit(), CallFilter::kReads);
  StartFill(tensor, IoClass::kDemand);
  core_.Settle();
  ASSERT_EQ(core_.transcript.size(), 4u);
  EXPECT_EQ(core_.transcript[2].event, TranscriptEvent::kMoveStarted);
  EXPECT_EQ(core_.transcript[2].io_class, static_cast<int>(IoClass::kDemand));
}

TEST_F(FillTest, WhatIsWrongTwiceIsLost) {
  Tensor& other = AddResting("other");
  Tensor& tensor = AddResting("a");
  faults_.FailAll(FlippedBit(), CallFilter::kReads);
  StartFill(tensor);
  const std::vector<Arrival> arrivals = core_.Settle();
  ASSERT_EQ(arrivals.size(), 1u);
  EXPECT_EQ(arrivals[0].kind, Kind::kLost);
  const absl::Status& loss = arrivals[0].status;
  EXPECT_TRUE(absl::IsDataLoss(loss)) << loss;
  EXPECT_THAT(std::string(loss.message()),
              HasSubstr("tensor 'a': disk0/state, offset 8192, 8192 bytes: "));
  EXPECT_EQ(IoFaultOf(loss).path, "disk0/state");
  EXPECT_EQ(IoFaultOf(loss).offset, 8192);
  EXPECT_EQ(tensor.at(kDramTier), nullptr);
  EXPECT_EQ(core_.dram.usage().used_bytes, 0);
  EXPECT_FALSE(transfers_.Has(tensor));
  EXPECT_TRUE(other.Fetchable());
  EXPECT_EQ(faults_.calls(CallFilter::kReads), 2);
}

TEST_F(FillTest, AtTheEndNothingIsFetchedAgain) {
  Tensor& tensor = AddResting("a");
  faults_.FailCall(1, FlippedBit(), CallFilter::kReads);
  StartFill(tensor);
  core_.Poll();
  core_.Poll();
  const std::vector<Checked> checked = RunTasks<Checked>();
  ASSERT_EQ(checked.size(), 1u);
  EXPECT_EQ(&transfers_.TensorOf(checked[0].transfer), &tensor);
  std::vector<Arrival> arrivals;
  transfers_.OnChecked(checked[0], /*again=*/false, /*matters=*/true,
                       &arrivals);
  ASSERT_EQ(arrivals.size(), 1u);
  EXPECT_EQ(arrivals[0].kind, Kind::kLost);
}

TEST_F(FillTest, WhatNobodyKnowsAnyMoreIsNeitherFetchedAgainNorLost) {
  Tensor& tensor = AddResting("a");
  faults_.FailCall(1, FlippedBit(), CallFilter::kReads);
  StartFill(tensor);
  core_.Poll();
  core_.Poll();
  std::vector<Arrival> arrivals;
  transfers_.OnChecked(RunTasks<Checked>().at(0), /*again=*/true,
                       /*matters=*/false, &arrivals);
  ASSERT_EQ(arrivals.size(), 1u);
  EXPECT_EQ(arrivals[0].kind, Kind::kWhole);
  EXPECT_FALSE(transfers_.Has(tensor));
}

TEST_F(FillTest, CancelledBeforeItIsIssuedItFails) {
  Tensor& tensor = AddResting("a");
  StartFill(tensor);
  transfers_.Cancel(tensor);
  const std::vector<Arrival> arrivals = core_.Settle();
  ASSERT_EQ(arrivals.size(), 1u);
  EXPECT_EQ(arrivals[0].kind, Kind::kFillFailed);
  EXPECT_TRUE(absl::IsCancelled(arrivals[0].status));
  EXPECT_EQ(faults_.calls(CallFilter::kReads), 0);
}

// Room in flight for one of them at a time.
class NarrowFillTest : public TransferTest {
 protected:
  NarrowFillTest()
      : TransferTest({.io = {.in_flight_bytes = kCopyBytes,
                             .adapts = false,
                             .most_in_flight_bytes = kCopyBytes}}) {}

  static std::vector<std::string> NamesOf(
      const std::vector<Arrival>& arrivals) {
    std::vector<std::string> names;
    for (const Arrival& each : arrivals) {
      names.push_back(each.tensor->spec.name);
    }
    return names;
  }
};

TEST_F(NarrowFillTest, APromotedOneOvertakesThoseOfItsOldClass) {
  Tensor& first = AddResting("first");
  Tensor& second = AddResting("second");
  StartFill(first, IoClass::kPrefetch);
  StartFill(second, IoClass::kPrefetch);
  transfers_.Promote(second, IoClass::kDemand);
  EXPECT_THAT(NamesOf(core_.Settle()), testing::ElementsAre("second", "first"));
}

TEST_F(NarrowFillTest, AllMovesAreCancelledInTheOrderInWhichTheyBegan) {
  Tensor& sealing = AddDirty("sealing");
  Tensor& again = AddResting("again");
  Tensor& fill = AddResting("fill");
  faults_.FailCall(1, FlippedBit(), CallFilter::kReads);
  StartFill(again);
  core_.Poll();
  core_.Poll();  // read, and to be checked
  transfers_.StartDrain(sealing, kDisk0, {});
  StartFill(fill);
  core_.Hear();  // moves: `again` once more, and what is sealed by now
  Tensor& sealed_late = AddDirty("sealed late");
  transfers_.StartDrain(sealed_late, kDisk0, {});
  transfers_.CancelAll();
  EXPECT_EQ(sealed_late.drain(), Drain::kSealing);  // it does not move yet
  EXPECT_THAT(NamesOf(core_.Poll()),
              testing::ElementsAre("fill", "again", "sealing"));
  EXPECT_THAT(NamesOf(core_.Settle()), testing::ElementsAre("sealed late"));
}

}  // namespace
}  // namespace terrace
