// Transfers to and from far memory: whole bytes, neither sealed nor checked,
// copied by tasks.
#include <algorithm>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/motion/transfer_fixture.h"

namespace terrace {
namespace {

using testing::Each;
using testing::HasSubstr;
using testing::SizeIs;
using Kind = Arrival::Kind;

// A tier of far memory, and a disk.
class MappedTest : public TransferTest {
 protected:
  MappedTest() : TransferTest({.far = 1, .paths = 1}) {}

  std::vector<std::byte>& far() { return core_.machine.far[0]->bytes.bytes(); }
  FaultMedium& far_faults() { return core_.machine.far[0]->faults; }
  // What far memory has of the tensor.
  std::vector<std::byte> FarBytesOf(const Tensor& tensor) {
    const auto begin = far().begin() + tensor.resting()->place.extent().offset +
                       kTensorHeaderBytes;
    return {begin, begin + tensor.spec.size_bytes};
  }
};

TEST_F(MappedTest, WhatIsWrittenThereComesBack) {
  Tensor& tensor = AddDirty("a");
  transfers_.StartDrain(tensor, kFar0, {});
  EXPECT_EQ(tensor.drain(), Drain::kSealing);
  EXPECT_EQ(transfers_.tasks(), 1);
  const std::vector<Arrival> written = core_.Settle();
  ASSERT_THAT(written, SizeIs(1));
  EXPECT_EQ(written[0].kind, Kind::kWritten);
  EXPECT_EQ(written[0].edge.to, kFar0);
  EXPECT_EQ(transfers_.tasks(), 0);
  EXPECT_TRUE(tensor.Fetchable());
  EXPECT_THAT(FarBytesOf(tensor), Each(std::byte{1}));
  std::fill(core_.Payload(tensor).begin(), core_.Payload(tensor).end(),
            std::byte{99});
  tensor.Drop(kDramTier);
  StartFill(tensor);
  const std::vector<Arrival> fetched = core_.Settle();
  ASSERT_THAT(fetched, SizeIs(1));
  EXPECT_EQ(fetched[0].kind, Kind::kWhole);
  EXPECT_EQ(fetched[0].edge.from, kFar0);
  EXPECT_THAT(core_.Payload(tensor), Each(std::byte{1}));
  EXPECT_EQ(core_.links.stats(kFar0).bytes_written, kCopyBytes);
  EXPECT_EQ(core_.links.stats(kFar0).bytes_read, kCopyBytes);
  EXPECT_EQ(core_.links.stats(kDisk0).bytes_written, 0);
}

// A bit that flips there is not found: that is what a disk's seal is for.
TEST_F(MappedTest, NothingIsCheckedThere) {
  Tensor& tensor = AddResting("a");
  far()[static_cast<size_t>(tensor.resting()->place.extent().offset +
                            kTensorHeaderBytes)] = std::byte{7};
  StartFill(tensor);
  const std::vector<Arrival> fetched = core_.Settle();
  ASSERT_THAT(fetched, SizeIs(1));
  EXPECT_EQ(fetched[0].kind, Kind::kWhole);
  EXPECT_EQ(core_.Payload(tensor)[0], std::byte{7});
  EXPECT_EQ(core_.Payload(tensor)[1], std::byte{1});
}

TEST_F(MappedTest, ATensorMovesBetweenFarMemoryAndDisk) {
  Tensor& tensor = AddResting("a");
  for (const TierId to : {kDisk0, kFar0, kDisk0}) {
    StartFill(tensor);
    core_.Settle();
    core_.Update(tensor);
    transfers_.StartDrain(tensor, to, Place(to));
    const std::vector<Arrival> written = core_.Settle();
    ASSERT_THAT(written, SizeIs(1));
    EXPECT_EQ(written[0].kind, Kind::kWritten);
    EXPECT_TRUE(written[0].moved);
    EXPECT_EQ(tensor.resting()->place.tier(), to);
    EXPECT_EQ(core_.resting.at(to == kFar0 ? kDisk0 : kFar0).usage().used_bytes,
              0);
    tensor.Drop(kDramTier);
  }
  StartFill(tensor);
  core_.Settle();
  EXPECT_THAT(core_.Payload(tensor), Each(std::byte{1}));
}

TEST_F(MappedTest, AWriteThatFailsLeavesTheTensorInMemory) {
  Tensor& tensor = AddDirty("a");
  far_faults().Fail(0, absl::UnavailableError("node1: EIO"));
  transfers_.StartDrain(tensor, kFar0, {});
  const std::vector<Arrival> failed = core_.Settle();
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_EQ(failed[0].kind, Kind::kWriteFailed);
  EXPECT_EQ(failed[0].status.message(), "node1: EIO");
  EXPECT_FALSE(failed[0].late);
  EXPECT_TRUE(tensor.Dirty(kDramTier));
  EXPECT_FALSE(transfers_.Has(tensor));
  transfers_.StartDrain(tensor, kFar0, {});
  EXPECT_EQ(core_.Settle().at(0).kind, Kind::kWritten);
}

TEST_F(MappedTest, AFetchThatFailsMayBeTriedAgain) {
  Tensor& tensor = AddResting("a");
  far_faults().Fail(0, absl::UnavailableError("node1: not now"));
  StartFill(tensor);
  const std::vector<Arrival> failed = core_.Settle();
  ASSERT_THAT(failed, SizeIs(1));
  EXPECT_EQ(failed[0].kind, Kind::kFillFailed);
  EXPECT_EQ(tensor.at(kDramTier), nullptr);
  EXPECT_EQ(core_.dram.usage().used_bytes, 0);
  StartFill(tensor);
  core_.Settle();
  EXPECT_THAT(core_.Payload(tensor), Each(std::byte{1}));
}

TEST_F(MappedTest, WhatFarMemoryLostIsLostByTheTensorsName) {
  Tensor& tensor = AddResting("a");
  far_faults().Fail(0, absl::DataLossError("node1, offset 0: EIO"));
  StartFill(tensor);
  const std::vector<Arrival> lost = core_.Settle();
  ASSERT_THAT(lost, SizeIs(1));
  EXPECT_EQ(lost[0].kind, Kind::kLost);
  EXPECT_THAT(std::string(lost[0].status.message()),
              testing::AllOf(HasSubstr("tensor 'a'"), HasSubstr("node1")));
}

TEST_F(MappedTest, ACancelledFetchGivesItsRoomBack) {
  Tensor& tensor = AddResting("a");
  StartFill(tensor, IoClass::kPrefetch);
  transfers_.Cancel(tensor);
  const std::vector<Arrival> cancelled = core_.Settle();
  ASSERT_THAT(cancelled, SizeIs(1));
  EXPECT_EQ(cancelled[0].kind, Kind::kFillFailed);
  EXPECT_TRUE(absl::IsCancelled(cancelled[0].status)) << cancelled[0].status;
  EXPECT_EQ(core_.dram.usage().used_bytes, 0);
}

// New tensors get their places on the disk, so that far memory is for what is
// written; full, it is not asked for what has a place.
TEST_F(MappedTest, PlacesAreOnTheDiskAndWritesGoWhereIsRoom) {
  WritePlacement& placement = core_.placement;
  EXPECT_EQ(placement.ChooseHome({false, false}, kCopyBytes), kDisk0);
  EXPECT_EQ(placement.ChooseHome({false, true}, kCopyBytes), kFar0);
  EXPECT_EQ(placement.ChooseHome({true, true}, kCopyBytes), kNoTier);
  const auto all = core_.resting.at(kFar0).Allocate(64 * kPage, true);
  ASSERT_TRUE(all.ok());
  Tensor& tensor = core_.Add("a", kPage, /*home=*/kDisk0);
  placement.OnMoved(
      {.edge = {kDramTier, kDisk0}, .status = absl::UnavailableError("EIO")});
  EXPECT_EQ(placement.ChooseTarget(tensor).tier, kDisk0);  // or nowhere
}

}  // namespace
}  // namespace terrace
