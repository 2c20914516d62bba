// What failing transfers mean to a customer: request.h, options.h, stats.h.
#include "absl/strings/match.h"
#include "tests/contract/failing_disk.h"

namespace terrace {
namespace {

using testing::HasSubstr;

using FailureContract = FailingDisk;
INSTANTIATE_TEST_SUITE_P(Worlds, FailureContract,
                         testing::ValuesIn(kDiskWorlds), WorldParamName);

TEST_P(FailureContract, AFailedReadIsItsGroupsAndTheNextOneMayDo) {
  Make(2);
  auto queue = world().OpenQueue(kPage, 2);
  const std::vector<TensorId> tensors = OnDisk(*queue, 2);
  world().faults().FailAll(kGone, CallFilter::kReads);
  ASSERT_TRUE(queue->Push({{tensors[0], Access::kRead}}, 5, Soon()).ok());
  absl::StatusOr<Ready> ready = queue->Next(Soon());
  ASSERT_TRUE(ready.ok()) << ready.status();  // the group failed, not Next
  EXPECT_EQ(ready->tag, 5u);
  EXPECT_TRUE(absl::IsUnavailable(ready->pins.status()));
  EXPECT_THAT(Message(ready->pins.status()), HasSubstr("ENXIO"));
  EXPECT_THAT(Message(ready->pins.status()), HasSubstr("offset"));
  Mend();
  EXPECT_TRUE(world().Holds(*queue, tensors[0], 0));  // not sticky
}

TEST_P(FailureContract, AGroupFailsAsAWhole) {
  Make(2);
  auto queue = world().OpenQueue(kPage, 2);
  const std::vector<TensorId> tensors = OnDisk(*queue, 2);
  world().faults().FailCall(1, kGone, CallFilter::kReads);
  ASSERT_TRUE(
      queue
          ->Push({{tensors[0], Access::kUpdate}, {tensors[1], Access::kUpdate}},
                 0, Soon())
          .ok());
  EXPECT_TRUE(absl::IsUnavailable(queue->Next(Soon())->pins.status()));
  // Neither is held: both can be had by a writer.
  for (int i = 0; i < 2; ++i) {
    absl::StatusOr<Pin> pin = world().Take(*queue, tensors[i], Access::kUpdate);
    ASSERT_TRUE(pin.ok()) << pin.status();
    EXPECT_TRUE(HasPattern(pin->data(), static_cast<uint8_t>(i)));
  }
}

TEST_P(FailureContract, AFailedWriteStaysAboveAndBeginStepTriesAgain) {
  Make(2);
  auto queue = world().OpenQueue(kPage, 2);
  const TensorId a = world().Register("a", kPage);
  world().faults().FailAll(kGone, CallFilter::kWrites);
  world().Fill(*queue, a, 1);
  ASSERT_TRUE(world().WaitUntil([&] { return stats().paths()[0].degraded; }));
  EXPECT_TRUE(world().Holds(*queue, a, 1));
  EXPECT_EQ(stats().bytes_read(), 0);
  EXPECT_EQ(stats().bytes_written(), 0);
  Mend();
  ASSERT_TRUE(queue->BeginStep(1).ok());
  EXPECT_TRUE(
      world().WaitUntil([&] { return stats().bytes_written() == kPlace; }));
  EXPECT_FALSE(stats().paths()[0].degraded);
}

TEST_P(FailureContract, AClosedQueuesFailedWriteIsKeptAndTriedByOpenQueue) {
  Make(4);
  auto queue = world().OpenQueue(kPage, 2);
  auto other = world().OpenQueue(kPage, 2);
  const TensorId a = world().Register("the unwritten", kPage);
  world().faults().FailAll(kGone, CallFilter::kWrites);
  world().Fill(*queue, a, 1);
  ASSERT_TRUE(world().WaitUntil([&] { return stats().paths()[0].degraded; }));
  queue.reset();
  // Any queue may read it, and no window gets its room.
  EXPECT_TRUE(world().Holds(*other, a, 1));
  EXPECT_EQ(stats().window_bytes, 4 * kPlace);
  // At a deadline that has passed, and at one while it is tried again.
  absl::Status full = runtime().OpenQueue(kPage, 2, world().Now()).status();
  EXPECT_THAT(Message(full), HasSubstr("not written back: 'the unwritten'"));
  EXPECT_TRUE(world().WaitUntil([&] {
    full = runtime().OpenQueue(kPage, 2, Shortly()).status();
    return absl::StrContains(full.message(), "not written back");
  })) << full;
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_THAT(Message(full), HasSubstr("not written back: 'the unwritten'"));
  EXPECT_THAT(Message(full), HasSubstr("ENXIO"));
  Mend();
  auto next = world().OpenQueue(kPage, 2);
  ASSERT_NE(next, nullptr);
  EXPECT_TRUE(world().Holds(*next, a, 1));
}

TEST_P(FailureContract, AResidentsFailedWriteIsNamedToWhoWantsItsRoom) {
  Make(4);
  auto queue = world().OpenQueue(kPage, 1);
  const TensorId a = world().Register("the unwritten", kPage);
  world().Fill(*queue, a, 1);
  ASSERT_EQ(stats().resident_bytes, kPlace);
  world().faults().FailAll(kGone, CallFilter::kWrites);
  const absl::Status full = runtime().OpenQueue(kPage, 3, Soon()).status();
  EXPECT_TRUE(absl::IsResourceExhausted(full)) << full;
  EXPECT_THAT(Message(full), HasSubstr("not written back: 'the unwritten'"));
  EXPECT_THAT(Message(full), HasSubstr("ENXIO"));
  Mend();
  auto next = world().OpenQueue(kPage, 3);
  ASSERT_NE(next, nullptr);
  EXPECT_TRUE(world().Holds(*next, a, 1));
}

TEST_P(FailureContract, OwnPinsDoNotHideTheErrorOfTheOtherSlot) {
  Make(2);
  auto queue = world().OpenQueue(kPage, 2);
  const std::vector<TensorId> tensors = world().RegisterMany(3, kPage);
  absl::StatusOr<Pin> pin =
      world().Take(*queue, tensors[0], Access::kOverwrite);
  ASSERT_TRUE(pin.ok()) << pin.status();
  world().faults().FailAll(kGone, CallFilter::kWrites);
  world().Fill(*queue, tensors[1], 1);
  ASSERT_TRUE(world().WaitUntil([&] { return stats().paths()[0].degraded; }));
  ASSERT_TRUE(queue->Push({{tensors[2], Access::kOverwrite}}, 0, Soon()).ok());
  const absl::Status blocked = queue->Next(absl::InfiniteFuture()).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(blocked)) << blocked;
  EXPECT_THAT(Message(blocked), HasSubstr("ENXIO"));
  EXPECT_THAT(Message(blocked), HasSubstr("offset"));
  Mend();
  pin->ReleaseUnchanged();
  EXPECT_TRUE(queue->Next(Soon())->pins.ok());
}

TEST_P(FailureContract, ALateReadIsDeadlineExceededAndItsBufferQuarantined) {
  Make(2, ShortTimeout());
  auto queue = world().OpenQueue(kPage, 2);
  const std::vector<TensorId> tensors = OnDisk(*queue, 2);
  world().faults().FailCall(1, {.kind = FaultKind::kNever}, CallFilter::kReads);
  const absl::Status late =
      world().Take(*queue, tensors[0], Access::kRead).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_EQ(stats().host.quarantined_bytes, kPlace);
  // The other slot serves, the same tensor too.
  EXPECT_TRUE(world().Holds(*queue, tensors[0], 0));
  EXPECT_TRUE(world().Holds(*queue, tensors[1], 1));
  Mend();
  EXPECT_TRUE(
      world().WaitUntil([&] { return stats().host.quarantined_bytes == 0; }));
  std::vector<Pin> both;  // which needs both slots
  for (int i = 0; i < 2; ++i) {
    absl::StatusOr<Pin> pin = world().Take(*queue, tensors[i], Access::kRead);
    ASSERT_TRUE(pin.ok()) << pin.status();
    both.push_back(*std::move(pin));
  }
}

TEST_P(FailureContract, WhereOnlyQuarantinedSlotsBlockTheGroupFailsAtOnce) {
  Make(1, ShortTimeout());
  auto queue = world().OpenQueue(kPage, 1);
  const std::vector<TensorId> tensors = OnDisk(*queue, 1, 1);
  world().faults().FailCall(1, {.kind = FaultKind::kNever}, CallFilter::kReads);
  EXPECT_FALSE(world().Take(*queue, tensors[0], Access::kRead).ok());
  ASSERT_TRUE(
      queue->Push({{tensors[1], Access::kRead}}, 3, absl::InfiniteFuture())
          .ok());
  absl::StatusOr<Ready> ready = queue->Next(absl::InfiniteFuture());
  ASSERT_TRUE(ready.ok()) << ready.status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(ready->pins.status()));
  EXPECT_THAT(Message(ready->pins.status()), HasSubstr("quarantined"));
  Mend();
}

TEST_P(FailureContract, ALateWritesTensorMayBeReadAndNotWritten) {
  Make(2, ShortTimeout());
  auto queue = world().OpenQueue(kPage, 2);
  const TensorId a = world().Register("a", kPage);
  world().faults().FailCall(1, {.kind = FaultKind::kNever},
                            CallFilter::kWrites);
  world().Fill(*queue, a, 4);
  ASSERT_TRUE(world().WaitUntil(
      [&] { return stats().host.quarantined_bytes == kPlace; }));
  EXPECT_TRUE(world().Holds(*queue, a, 4));
  for (const Access access : {Access::kUpdate, Access::kOverwrite}) {
    const absl::Status late = world().Take(*queue, a, access).status();
    EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
    EXPECT_THAT(Message(late), HasSubstr("'a'"));
  }
  Mend();
  ASSERT_TRUE(
      world().WaitUntil([&] { return stats().host.quarantined_bytes == 0; }));
  ASSERT_TRUE(queue->BeginStep(1).ok());
  world().Fill(*queue, a, 5);
  EXPECT_TRUE(world().Holds(*queue, a, 5));
}

TEST_P(FailureContract, BytesWrongTwiceAreAStickyDataLoss) {
  Make(2);
  auto queue = world().OpenQueue(kPage, 2);
  const std::vector<TensorId> tensors = OnDisk(*queue, 2);
  const Fault flip = {.kind = FaultKind::kBitFlip};
  // Once: what was flipped on the way is read again.
  world().faults().FailCall(1, flip, CallFilter::kReads);
  EXPECT_TRUE(world().Holds(*queue, tensors[0], 0));
  ASSERT_TRUE(queue->BeginStep(1).ok());
  world().faults().FailAll(flip, CallFilter::kReads);
  const absl::Status lost =
      world().Take(*queue, tensors[1], Access::kRead).status();
  EXPECT_TRUE(absl::IsDataLoss(lost)) << lost;
  Mend();
  for (const Access access :
       {Access::kRead, Access::kUpdate, Access::kOverwrite}) {
    EXPECT_EQ(world().Take(*queue, tensors[1], access).status(), lost);
  }
  EXPECT_TRUE(absl::IsDataLoss(queue->CommitStep({.step = 1})));
}

TEST_P(FailureContract, EveryFetchHasItsOwnSecondReading) {
  Make(2);
  auto queue = world().OpenQueue(kPage, 2);
  const std::vector<TensorId> tensors = OnDisk(*queue, 2);
  const Fault flip = {.kind = FaultKind::kBitFlip};
  world().faults().FailCall(1, flip, CallFilter::kReads);
  world().faults().FailCall(2, kGone, CallFilter::kReads);
  world().faults().FailCall(3, flip, CallFilter::kReads);
  const absl::Status failed =
      world().Take(*queue, tensors[0], Access::kRead).status();
  EXPECT_TRUE(absl::IsUnavailable(failed)) << failed;
  EXPECT_TRUE(world().Holds(*queue, tensors[0], 0));
}

}  // namespace
}  // namespace terrace
