// Several paths: where write-backs go when one of them refuses, and what is
// told of it: stats.h, runtime.h.
#include "base/io_fault.h"
#include "tests/contract/contract_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class PlacementContract : public ContractTest {
 protected:
  static constexpr Fault kRefused = {.kind = FaultKind::kError, .error = EROFS};

  void MakePaths(int places, TestRuntimeOptions options = {}) {
    options.paths = 2;
    Make(places, options);
  }
  TierStats path(int path) {
    return stats().paths()[static_cast<size_t>(path)];
  }
  void Refuse(int path) {
    world().faults().FailFile(path, kRefused, CallFilter::kWrites);
  }
  // Ends all faults; the mover sees what they held back.
  void Mend() {
    world().faults().Clear();
    runtime().Prefetch({});
  }
  bool IsWritten(int64_t tensors) {
    return world().WaitUntil(
        [&] { return stats().bytes_written() == tensors * kPlace; });
  }
  // Takes the only slot, so that what was in it is read again.
  void Displace(RequestQueue& queue) {
    const TensorId other =
        world().Register(absl::StrCat("other", ++others_), kPage);
    world().Fill(queue, other, 99);
  }

 private:
  int others_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Worlds, PlacementContract,
                         testing::ValuesIn(kDiskWorlds), WorldParamName);

TEST_P(PlacementContract, WhatOnePathRefusesTheOtherTakes) {
  MakePaths(1);
  auto queue = world().OpenQueue(kPage, 1);
  const TensorId a = world().Register("a", kPage);
  ASSERT_EQ(path(0).used_bytes, kPlace);
  ASSERT_EQ(path(0).tensors, 1);
  Refuse(0);
  ASSERT_TRUE(queue->BeginStep(1).ok());
  world().Fill(*queue, a, 3);
  ASSERT_TRUE(IsWritten(1));
  // Nothing is lost: the step is whole, the path is told.
  EXPECT_TRUE(queue->CommitStep({.step = 1}).ok());
  const Stats told = stats();
  EXPECT_TRUE(told.paths()[0].degraded);
  EXPECT_EQ(told.paths()[0].state, TierState::kRefusesWrites);
  EXPECT_TRUE(absl::IsUnavailable(told.paths()[0].write_error));
  EXPECT_THAT(Message(told.paths()[0].write_error), HasSubstr("EROFS"));
  EXPECT_THAT(Message(told.paths()[0].write_error),
              HasSubstr(told.paths()[0].disk.file));
  EXPECT_EQ(told.first_error, told.paths()[0].write_error);
  EXPECT_EQ(told.paths()[0].used_bytes, 0);
  EXPECT_EQ(told.paths()[0].tensors, 0);
  EXPECT_FALSE(told.paths()[1].degraded);
  EXPECT_TRUE(told.paths()[1].write_error.ok());
  EXPECT_EQ(told.paths()[1].used_bytes, kPlace);
  EXPECT_EQ(told.paths()[1].tensors, 1);
  EXPECT_EQ(told.paths()[1].tensors_moved_in, 1);
  Displace(*queue);
  EXPECT_TRUE(world().Holds(*queue, a, 3));
  EXPECT_EQ(path(1).traffic.bytes_read, kPlace);
  EXPECT_EQ(path(0).traffic.bytes_read, 0);
}

TEST_P(PlacementContract, WhereNoPathTakesWritesRegisterSaysWhichAndWhy) {
  MakePaths(1);
  auto queue = world().OpenQueue(kPage, 1);
  const TensorId a = world().Register("a", kPage);
  world().faults().FailAll(kRefused, CallFilter::kWrites);
  ASSERT_TRUE(queue->BeginStep(1).ok());
  world().Fill(*queue, a, 3);
  ASSERT_TRUE(
      world().WaitUntil([&] { return path(0).degraded && path(1).degraded; }));
  TensorSpec spec;
  spec.name = "b";
  spec.size_bytes = kPage;
  const absl::Status refused = runtime().Register(spec).status();
  EXPECT_TRUE(absl::IsUnavailable(refused)) << refused;
  EXPECT_THAT(Message(refused), HasSubstr("EROFS"));
  EXPECT_THAT(Message(refused), HasSubstr(path(0).disk.file));
  EXPECT_THAT(Message(refused), HasSubstr(path(1).disk.file));
  EXPECT_EQ(IoFaultOf(refused).error, EROFS);
  EXPECT_EQ(IoFaultOf(refused).path, path(0).disk.file);
}

TEST_P(PlacementContract, WhatLiesOnAPathThatRefusesWritesIsRead) {
  MakePaths(1);
  auto queue = world().OpenQueue(kPage, 1);
  const TensorId a = world().Register("a", kPage);
  world().Fill(*queue, a, 3);
  ASSERT_TRUE(IsWritten(1));
  Refuse(0);
  Displace(*queue);
  EXPECT_TRUE(world().Holds(*queue, a, 3));
  EXPECT_EQ(path(0).traffic.bytes_read, kPlace);
  // Written next, it goes away.
  world().Fill(*queue, a, 4);
  Displace(*queue);
  EXPECT_TRUE(world().Holds(*queue, a, 4));
  EXPECT_EQ(path(0).used_bytes, 0);
  EXPECT_EQ(path(0).traffic.bytes_read, kPlace);
}

TEST_P(PlacementContract, ARefusingPathIsTriedAgainByTheNextStep) {
  MakePaths(1);
  auto queue = world().OpenQueue(kPage, 1);
  const TensorId a = world().Register("a", kPage);
  Refuse(0);
  world().Fill(*queue, a, 1);
  ASSERT_TRUE(IsWritten(1));
  world().Fill(*queue, a, 2);
  ASSERT_TRUE(IsWritten(2));
  EXPECT_TRUE(path(0).degraded);
  EXPECT_EQ(path(0).traffic.requests_written, 1);  // and not asked since
  Mend();
  ASSERT_TRUE(queue->BeginStep(1).ok());
  world().Fill(*queue, a, 3);
  ASSERT_TRUE(IsWritten(3));
  EXPECT_FALSE(path(0).degraded);
  EXPECT_EQ(path(0).state, TierState::kHealthy);
  EXPECT_FALSE(path(0).write_error.ok());  // it is still told what it was
  EXPECT_EQ(path(0).tensors, 1);
  EXPECT_EQ(path(1).used_bytes, 0);
  EXPECT_TRUE(queue->CommitStep({.step = 1}).ok());
  Displace(*queue);
  EXPECT_TRUE(world().Holds(*queue, a, 3));
}

TEST_P(PlacementContract, WhatCannotBeReadIsDataLossWithItsNameAndPlace) {
  MakePaths(1);
  auto queue = world().OpenQueue(kPage, 1);
  const TensorId a = world().Register("the unreadable", kPage);
  world().Fill(*queue, a, 3);
  ASSERT_TRUE(IsWritten(1));
  Displace(*queue);
  world().faults().FailFile(0, {.kind = FaultKind::kError, .error = EIO},
                            CallFilter::kReads);
  const absl::Status lost = world().Take(*queue, a, Access::kRead).status();
  EXPECT_TRUE(absl::IsDataLoss(lost)) << lost;
  EXPECT_THAT(Message(lost), HasSubstr("'the unreadable'"));
  EXPECT_THAT(Message(lost), HasSubstr(path(0).disk.file));
  EXPECT_THAT(Message(lost), HasSubstr("offset 0"));
  EXPECT_THAT(Message(lost), HasSubstr("EIO"));
  EXPECT_EQ(path(0).state, TierState::kUnreadable);
  EXPECT_FALSE(path(0).degraded);
  Mend();
  EXPECT_EQ(world().Take(*queue, a, Access::kRead).status(), lost);
}

TEST_P(PlacementContract, WhereNoOtherPathHasRoomItStaysAboveAndTheStepHears) {
  MakePaths(1);
  auto queue = world().OpenQueue(kPage, 1);
  const TensorId a = world().Register("a", kPage);
  world().disk_faults(1).Fill();
  const TensorId b = world().Register("b", kPage);
  ASSERT_EQ(path(0).tensors, 2);
  Refuse(0);
  ASSERT_TRUE(queue->BeginStep(1).ok());
  world().Fill(*queue, a, 3);
  // A request for its slot hears of it, and so does the step.
  const absl::Status full =
      world().Take(*queue, b, Access::kOverwrite).status();
  EXPECT_TRUE(absl::IsUnavailable(full)) << full;
  EXPECT_THAT(Message(full), HasSubstr("EROFS"));
  EXPECT_EQ(queue->CommitStep({.step = 1}), full);
  EXPECT_TRUE(world().Holds(*queue, a, 3));
  EXPECT_EQ(path(0).tensors, 2);
  EXPECT_EQ(path(1).used_bytes, 0);
  world().disk_faults(1).Clear();
  ASSERT_TRUE(queue->BeginStep(2).ok());
  ASSERT_TRUE(IsWritten(1));
  EXPECT_TRUE(queue->CommitStep({.step = 2}).ok());
  EXPECT_EQ(path(1).used_bytes, kPlace);
}

TEST_P(PlacementContract, ADiskThatDoesNotGrowIsNotWaitedForForEver) {
  TestRuntimeOptions options;
  options.io_timeout = HealthyTimeout();
  MakePaths(1, options);
  auto queue = world().OpenQueue(kPage, 1);
  const TensorId a = world().Register("a", kPage);
  world().disk_faults(1).Hang();
  Refuse(0);
  ASSERT_TRUE(queue->BeginStep(1).ok());
  world().Fill(*queue, a, 3);
  ASSERT_TRUE(world().WaitUntil([&] { return path(1).degraded; }));
  const absl::Status heard = queue->CommitStep({.step = 1});
  EXPECT_TRUE(absl::IsUnavailable(heard)) << heard;
  EXPECT_THAT(Message(heard), HasSubstr("EROFS"));
  EXPECT_TRUE(world().Holds(*queue, a, 3));
  world().disk_faults(1).Clear();
  runtime().Prefetch({});
  ASSERT_TRUE(world().WaitUntil([&] { return !path(1).degraded; }));
  ASSERT_TRUE(queue->BeginStep(2).ok());
  ASSERT_TRUE(IsWritten(1));
  EXPECT_EQ(path(1).tensors, 1);
}

TEST_P(PlacementContract, ATensorMayGoWhileItMoves) {
  MakePaths(1);
  auto queue = world().OpenQueue(kPage, 1);
  const TensorId a = world().Register("a", kPage);
  Refuse(0);
  world().faults().FailFile(1, {.kind = FaultKind::kDelay},
                            CallFilter::kWrites);
  world().Fill(*queue, a, 3);
  ASSERT_TRUE(
      world().WaitUntil([&] { return path(1).traffic.requests_written == 1; }));
  EXPECT_TRUE(runtime().Unregister(a).ok());
  EXPECT_TRUE(world().WaitUntil(
      [&] { return path(0).used_bytes + path(1).used_bytes == 0; }));
}

TEST_P(PlacementContract, AMoveThatIsLateKeepsBothPlacesUntilItEnds) {
  TestRuntimeOptions options;
  options.io_timeout = HealthyTimeout();
  MakePaths(1, options);
  auto queue = world().OpenQueue(kPage, 1);
  const TensorId a = world().Register("a", kPage);
  Refuse(0);
  world().faults().FailFile(1, {.kind = FaultKind::kNever},
                            CallFilter::kWrites);
  world().Fill(*queue, a, 3);
  ASSERT_TRUE(world().WaitUntil(
      [&] { return stats().host.quarantined_bytes == kPlace; }));
  EXPECT_EQ(path(0).used_bytes, kPlace);
  EXPECT_EQ(path(1).used_bytes, kPlace);
  EXPECT_EQ(path(0).tensors, 1);
  EXPECT_TRUE(world().Holds(*queue, a, 3));
  const absl::Status late = world().Take(*queue, a, Access::kUpdate).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_THAT(Message(late), HasSubstr(path(1).disk.file));
  Mend();
  // It was written after all.
  ASSERT_TRUE(world().WaitUntil([&] { return path(0).used_bytes == 0; }));
  EXPECT_EQ(path(1).tensors, 1);
  ASSERT_TRUE(queue->BeginStep(1).ok());  // or no path takes another tensor
  Displace(*queue);
  EXPECT_TRUE(world().Holds(*queue, a, 3));
}

TEST_P(PlacementContract, CloseDoesNotWaitForAMove) {
  MakePaths(1);
  auto queue = world().OpenQueue(kPage, 1);
  const TensorId a = world().Register("a", kPage);
  Refuse(0);
  world().faults().FailFile(1, {.kind = FaultKind::kDelay},
                            CallFilter::kWrites);
  world().Fill(*queue, a, 3);
  ASSERT_TRUE(
      world().WaitUntil([&] { return path(1).traffic.requests_written == 1; }));
  queue.reset();
  const absl::Status closed = runtime().Close(Soon());
  EXPECT_TRUE(closed.ok()) << closed;
}

}  // namespace
}  // namespace terrace
