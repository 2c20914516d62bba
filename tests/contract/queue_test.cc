// request.h and architecture's "Windows" and "Admission", a test a sentence.
#include "tests/contract/contract_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class QueueContract : public ContractTest {};
INSTANTIATE_TEST_SUITE_P(Worlds, QueueContract, testing::ValuesIn(kAllWorlds),
                         WorldParamName);

// Their faults and what they count are of disks.
class QueueOverDisks : public QueueContract {};
INSTANTIATE_TEST_SUITE_P(Worlds, QueueOverDisks, testing::ValuesIn(kDiskWorlds),
                         WorldParamName);

TEST_P(QueueContract, PushRefusesWhatCanNeverBeAdmitted) {
  Make(4);
  const TensorId a = world().Register("a", kPage);
  const TensorId b = world().Register("b", kPage);
  const TensorId c = world().Register("c", kPage);
  const TensorId big = world().Register("big", 2 * kPage);
  auto queue = world().OpenQueue(kPage, 2);
  const auto refused = [&](std::vector<Want> wants) {
    return absl::IsInvalidArgument(queue->Push(wants, 0, Soon()));
  };
  EXPECT_TRUE(refused({}));
  EXPECT_TRUE(refused({{TensorId{99}}}));
  EXPECT_TRUE(refused({{TensorId{}}}));
  EXPECT_TRUE(refused({{a}, {a}}));
  EXPECT_TRUE(refused({{a}, {b}, {c}}));
  EXPECT_TRUE(refused({{big}}));
  EXPECT_TRUE(absl::IsFailedPrecondition(queue->Next(Soon()).status()));
}

TEST_P(QueueContract, NextFailsAtOnceWhenNothingIsPushed) {
  Make(4);
  auto queue = world().OpenQueue(kPage, 2);
  EXPECT_TRUE(
      absl::IsFailedPrecondition(queue->Next(absl::InfiniteFuture()).status()));
}

TEST_P(QueueContract, NextFailsAtOnceWhenOnlyOwnPinsBlock) {
  Make(2);
  const std::vector<TensorId> tensors = world().RegisterMany(3, kPage);
  auto queue = world().OpenQueue(kPage, 2);
  absl::StatusOr<Pin> first =
      world().Take(*queue, tensors[0], Access::kOverwrite);
  absl::StatusOr<Pin> second =
      world().Take(*queue, tensors[1], Access::kOverwrite);
  ASSERT_TRUE(first.ok() && second.ok());
  ASSERT_TRUE(queue->Push({{tensors[2], Access::kOverwrite}}, 7, Soon()).ok());
  EXPECT_TRUE(
      absl::IsFailedPrecondition(queue->Next(absl::InfiniteFuture()).status()));
  // The group stays, and has its turn when the pin is gone.
  first->Release();
  absl::StatusOr<Ready> ready = queue->Next(Soon());
  ASSERT_TRUE(ready.ok()) << ready.status();
  EXPECT_EQ(ready->tag, 7u);
  EXPECT_TRUE(ready->pins.ok()) << ready->pins.status();
}

TEST_P(QueueContract, AGroupBlockedHalfwayByOwnPinsSaysSo) {
  Make(2);
  const std::vector<TensorId> tensors = world().RegisterMany(3, kPage);
  auto queue = world().OpenQueue(kPage, 2);
  absl::StatusOr<Pin> held =
      world().Take(*queue, tensors[0], Access::kOverwrite);
  ASSERT_TRUE(held.ok());
  ASSERT_TRUE(queue
                  ->Push({{tensors[1], Access::kOverwrite},
                          {tensors[2], Access::kOverwrite}},
                         0, Soon())
                  .ok());
  EXPECT_TRUE(
      absl::IsFailedPrecondition(queue->Next(absl::InfiniteFuture()).status()));
  // All or nothing: the slot that one of them could have had is still free.
  EXPECT_EQ(stats().bytes_read(), 0);
  held->Release();
  EXPECT_TRUE(queue->Next(Soon())->pins.ok());
}

TEST_P(QueueContract, OwnWritePinBlocksOwnReader) {
  Make(2);
  const TensorId a = world().Register("a", kPage);
  auto queue = world().OpenQueue(kPage, 2);
  absl::StatusOr<Pin> pin = world().Take(*queue, a, Access::kOverwrite);
  ASSERT_TRUE(pin.ok());
  ASSERT_TRUE(queue->Push({{a, Access::kRead}}, 0, Soon()).ok());
  EXPECT_TRUE(
      absl::IsFailedPrecondition(queue->Next(absl::InfiniteFuture()).status()));
  pin->Release();
  EXPECT_TRUE(queue->Next(Soon())->pins.ok());
}

TEST_P(QueueContract, NextWaitsForAnotherQueuesPinAndIsDeadlineExceeded) {
  Make(4);
  const TensorId a = world().Register("a", kPage);
  auto one = world().OpenQueue(kPage, 1);
  auto two = world().OpenQueue(kPage, 1);
  absl::StatusOr<Pin> pin = world().Take(*one, a, Access::kOverwrite);
  ASSERT_TRUE(pin.ok());
  ASSERT_TRUE(two->Push({{a, Access::kRead}}, 3, Soon()).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(two->Next(Shortly()).status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(two->Next(Shortly()).status()));
  WritePattern(pin->data(), 5);
  pin->Release();
  absl::StatusOr<Ready> ready = two->Next(Soon());
  ASSERT_TRUE(ready.ok() && ready->pins.ok());
  EXPECT_EQ(ready->tag, 3u);
  EXPECT_TRUE(HasPattern(ready->pins->front().data(), 5));
}

TEST_P(QueueContract, ASlotPinnedByAnotherQueueIsWaitedFor) {
  // `mine` has its only slot taken by what `other` reads there.
  Make(2);
  const std::vector<TensorId> tensors = world().RegisterMany(2, kPage);
  auto mine = world().OpenQueue(kPage, 1);
  auto other = world().OpenQueue(kPage, 1);
  world().Fill(*mine, tensors[0], 1);
  absl::StatusOr<Pin> theirs = world().Take(*other, tensors[0], Access::kRead);
  ASSERT_TRUE(theirs.ok());
  ASSERT_TRUE(mine->Push({{tensors[1], Access::kOverwrite}}, 0, Soon()).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(mine->Next(Shortly()).status()));
  theirs->Release();
  EXPECT_TRUE(mine->Next(Soon())->pins.ok());
}

TEST_P(QueueContract, PastItsDeadlineAGroupNamesTheHolders) {
  Make(4);
  const TensorId a = world().Register("weights of a", kPage);
  const TensorId b = world().Register("b", kPage);
  auto one = world().OpenQueue(kPage, 1);
  auto two = world().OpenQueue(kPage, 1);
  absl::StatusOr<Pin> pin = world().Take(*one, a, Access::kOverwrite);
  ASSERT_TRUE(pin.ok());
  ASSERT_TRUE(two->Push({{a, Access::kRead}}, 1, Shortly()).ok());
  ASSERT_TRUE(two->Push({{b, Access::kOverwrite}}, 2, Soon()).ok());
  absl::StatusOr<Ready> ready = two->Next(Soon());
  ASSERT_TRUE(ready.ok()) << ready.status();
  EXPECT_EQ(ready->tag, 1u);
  EXPECT_TRUE(absl::IsResourceExhausted(ready->pins.status()));
  EXPECT_THAT(Message(ready->pins.status()), HasSubstr("'weights of a'"));
  // The request behind it goes on.
  ready = two->Next(Soon());
  ASSERT_TRUE(ready.ok()) << ready.status();
  EXPECT_EQ(ready->tag, 2u);
  EXPECT_TRUE(ready->pins.ok()) << ready->pins.status();
}

TEST_P(QueueContract, AGroupBehindTheHeadEndsAtItsOwnDeadline) {
  Make(4);
  const TensorId a = world().Register("a", kPage);
  const TensorId b = world().Register("b", kPage);
  auto one = world().OpenQueue(kPage, 1);
  auto two = world().OpenQueue(kPage, 1);
  absl::StatusOr<Pin> pin = world().Take(*one, a, Access::kOverwrite);
  ASSERT_TRUE(pin.ok());
  ASSERT_TRUE(two->Push({{a, Access::kRead}}, 1, Soon()).ok());
  ASSERT_TRUE(two->Push({{b, Access::kOverwrite}}, 2, Shortly()).ok());
  absl::StatusOr<Ready> ready = two->Next(Soon());
  ASSERT_TRUE(ready.ok()) << ready.status();
  EXPECT_EQ(ready->tag, 2u);
  EXPECT_TRUE(absl::IsResourceExhausted(ready->pins.status()));
  pin->Release();
  EXPECT_EQ(two->Next(Soon())->tag, 1u);
}

TEST_P(QueueContract, AdmissionIsFirstInFirstOut) {
  // The second group could be had at once, yet the first comes first.
  Make(4);
  const TensorId a = world().Register("a", kPage);
  const TensorId b = world().Register("b", kPage);
  auto one = world().OpenQueue(kPage, 1);
  auto two = world().OpenQueue(kPage, 2);
  absl::StatusOr<Pin> pin = world().Take(*one, a, Access::kOverwrite);
  ASSERT_TRUE(pin.ok());
  ASSERT_TRUE(two->Push({{a, Access::kRead}}, 1, Soon()).ok());
  ASSERT_TRUE(two->Push({{b, Access::kOverwrite}}, 2, Soon()).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(two->Next(Shortly()).status()));
  pin->Release();
  absl::StatusOr<Ready> first = two->Next(Soon());
  ASSERT_TRUE(first.ok());
  EXPECT_EQ(first->tag, 1u);
  EXPECT_EQ(two->Next(Soon())->tag, 2u);
}

TEST_P(QueueContract, AWaitingGroupHoldsNothing) {
  // {a, b} waits for a; meanwhile another queue may write b.
  Make(6);
  const TensorId a = world().Register("a", kPage);
  const TensorId b = world().Register("b", kPage);
  auto one = world().OpenQueue(kPage, 2);
  auto two = world().OpenQueue(kPage, 2);
  world().Fill(*one, b, 1);
  absl::StatusOr<Pin> pin = world().Take(*one, a, Access::kOverwrite);
  ASSERT_TRUE(pin.ok());
  ASSERT_TRUE(
      two->Push({{b, Access::kUpdate}, {a, Access::kUpdate}}, 0, Soon()).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(two->Next(Shortly()).status()));
  world().Fill(*one, b, 2);
  pin->Release();
  absl::StatusOr<Ready> ready = two->Next(Soon());
  ASSERT_TRUE(ready.ok() && ready->pins.ok());
  ASSERT_EQ(ready->pins->size(), 2u);
  EXPECT_EQ((*ready->pins)[0].tensor(), b);
  EXPECT_EQ((*ready->pins)[1].tensor(), a);
  EXPECT_TRUE(HasPattern((*ready->pins)[0].data(), 2));
}

TEST_P(QueueContract, AGroupsOwnTensorsDoNotMakeRoomForEachOther) {
  // Of three tensors two fit; each pair, in each order, again and again.
  Make(2);
  const std::vector<TensorId> tensors = world().RegisterMany(3, kPage);
  auto queue = world().OpenQueue(kPage, 2);
  for (int i = 0; i < 3; ++i) world().Fill(*queue, tensors[i], i);
  for (int round = 0; round < 12; ++round) {
    const int first = round % 3;
    const int second = (first + 1 + round % 2) % 3;
    ASSERT_TRUE(queue
                    ->Push({{tensors[first], Access::kUpdate},
                            {tensors[second], Access::kUpdate}},
                           0, Soon())
                    .ok());
    absl::StatusOr<Ready> ready = queue->Next(Soon());
    ASSERT_TRUE(ready.ok()) << ready.status();
    ASSERT_TRUE(ready->pins.ok()) << ready->pins.status();
    EXPECT_TRUE(HasPattern((*ready->pins)[0].data(), first));
    EXPECT_TRUE(HasPattern((*ready->pins)[1].data(), second));
  }
}

TEST_P(QueueContract, AResidentOfTheGroupIsNotEvictedForTheGroup) {
  TestRuntimeOptions options;
  options.eviction = EvictionKind::kLru;
  Make(4, options);
  const std::vector<TensorId> tensors = world().RegisterMany(5, kPage);
  auto queue = world().OpenQueue(kPage, 2);
  for (int i = 0; i < 5; ++i) world().Fill(*queue, tensors[i], i);
  for (int round = 0; round < 20; ++round) {
    const int first = round % 5;
    const int second = (first + 1 + round % 4) % 5;
    ASSERT_TRUE(queue
                    ->Push({{tensors[first], Access::kUpdate},
                            {tensors[second], Access::kUpdate}},
                           0, Soon())
                    .ok());
    absl::StatusOr<Ready> ready = queue->Next(Soon());
    ASSERT_TRUE(ready.ok()) << ready.status();
    ASSERT_TRUE(ready->pins.ok()) << ready->pins.status();
    EXPECT_TRUE(HasPattern((*ready->pins)[0].data(), first));
    EXPECT_TRUE(HasPattern((*ready->pins)[1].data(), second));
  }
}

TEST_P(QueueContract, AFailedGroupReleasesWhatItHeld) {
  Make(4);
  const TensorId good = world().Register("good", kPage);
  const TensorId never = world().Register("never", kPage);
  auto queue = world().OpenQueue(kPage, 2);
  world().Fill(*queue, good, 4);
  ASSERT_TRUE(
      queue->Push({{good, Access::kUpdate}, {never, Access::kRead}}, 0, Soon())
          .ok());
  absl::StatusOr<Ready> ready = queue->Next(Soon());
  ASSERT_TRUE(ready.ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(ready->pins.status()));
  EXPECT_THAT(Message(ready->pins.status()), HasSubstr("'never'"));
  EXPECT_TRUE(world().Holds(*queue, good, 4));
  absl::StatusOr<Pin> writer = world().Take(*queue, good, Access::kUpdate);
  EXPECT_TRUE(writer.ok()) << writer.status();
}

TEST_P(QueueOverDisks, ClosingAQueueCancelsWhatIsPushed) {
  Make(4);
  const std::vector<TensorId> tensors = world().RegisterMany(4, kPage);
  auto queue = world().OpenQueue(kPage, 2);
  for (int i = 0; i < 4; ++i) world().Fill(*queue, tensors[i], i);
  // Reads are under way, groups are ready and never taken, others wait.
  world().faults().FailAll({.kind = FaultKind::kDelay}, CallFilter::kReads);
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(queue->Push({{tensors[i], Access::kRead}}, i, Soon()).ok());
  }
  queue.reset();
  EXPECT_TRUE(world().WaitUntil([&] { return stats().window_bytes == 0; }));
  auto next = world().OpenQueue(kPage, 2);
  for (int i = 0; i < 4; ++i) EXPECT_TRUE(world().Holds(*next, tensors[i], i));
}

TEST_P(QueueOverDisks, WhatBecomesReadyFirstIsTakenFirst) {
  // The first group has to be fetched, and its read takes long.
  Make(3);
  const std::vector<TensorId> tensors = world().RegisterMany(4, kPage);
  auto queue = world().OpenQueue(kPage, 2);
  for (int i = 0; i < 4; ++i) world().Fill(*queue, tensors[i], i);
  ASSERT_TRUE(queue
                  ->Push({{tensors[2], Access::kOverwrite},
                          {tensors[3], Access::kOverwrite}},
                         0, Soon())
                  .ok());
  ASSERT_TRUE(queue->Next(Soon())->pins.ok());  // so tensor 1 is in no slot
  world().faults().FailAll({.kind = FaultKind::kNever}, CallFilter::kReads);
  ASSERT_TRUE(queue->Push({{tensors[1], Access::kRead}}, 1, Soon()).ok());
  ASSERT_TRUE(queue->Push({{tensors[0], Access::kRead}}, 2, Soon()).ok());
  absl::StatusOr<Ready> ready = queue->Next(Soon());
  ASSERT_TRUE(ready.ok()) << ready.status();
  EXPECT_EQ(ready->tag, 2u);
  EXPECT_EQ(ready->cause, WaitCause::kNone);
  world().faults().Clear();
  runtime().Prefetch({});  // the mover looks again
  ready = queue->Next(Soon());
  ASSERT_TRUE(ready.ok()) << ready.status();
  EXPECT_EQ(ready->tag, 1u);
  EXPECT_TRUE(ready->pins.ok()) << ready->pins.status();
}

TEST_P(QueueOverDisks, ReadySaysWhatItWaitedForLast) {
  Make(3);
  const TensorId a = world().Register("a", kPage);
  auto one = world().OpenQueue(kPage, 1);
  auto two = world().OpenQueue(kPage, 1);
  world().Fill(*one, a, 1);  // stays outside the windows
  ASSERT_TRUE(one->Push({{a, Access::kRead}}, 0, Soon()).ok());
  absl::StatusOr<Ready> reader = one->Next(Soon());
  ASSERT_TRUE(reader.ok() && reader->pins.ok());
  EXPECT_EQ(reader->cause, WaitCause::kNone);
  ASSERT_TRUE(two->Push({{a, Access::kUpdate}}, 0, Soon()).ok());
  stats();  // the mover has found it pinned
  EXPECT_TRUE(absl::IsDeadlineExceeded(two->Next(Shortly()).status()));
  reader->pins->clear();
  absl::StatusOr<Ready> writer = two->Next(Soon());
  ASSERT_TRUE(writer.ok() && writer->pins.ok());
  EXPECT_EQ(writer->cause, WaitCause::kSpace);  // for another's pin
  writer->pins->clear();
  // Out to disk, and in again.
  two.reset();
  world().OpenQueue(kPage, 2).reset();
  ASSERT_TRUE(
      world().WaitUntil([&] { return stats().window_bytes == kPlace; }));
  world().faults().FailAll({.kind = FaultKind::kDelay}, CallFilter::kReads);
  ASSERT_TRUE(one->Push({{a, Access::kRead}}, 0, Soon()).ok());
  reader = one->Next(Soon());
  ASSERT_TRUE(reader.ok() && reader->pins.ok());
  EXPECT_EQ(reader->cause, WaitCause::kRead);
}

TEST_P(QueueOverDisks, ASlotBeingWrittenBackIsAWaitForTheWriteBack) {
  Make(1);  // the window takes it all
  const std::vector<TensorId> tensors = world().RegisterMany(2, kPage);
  auto queue = world().OpenQueue(kPage, 1);
  world().Fill(*queue, tensors[0], 1);
  world().Fill(*queue, tensors[1], 2);
  world().faults().FailAll({.kind = FaultKind::kDelay}, CallFilter::kWrites);
  ASSERT_TRUE(queue->Push({{tensors[0], Access::kUpdate}}, 0, Soon()).ok());
  ASSERT_TRUE(queue->Push({{tensors[1], Access::kOverwrite}}, 1, Soon()).ok());
  absl::StatusOr<Ready> ready = queue->Next(Soon());
  ASSERT_TRUE(ready.ok() && ready->pins.ok());
  ready->pins->clear();
  ready = queue->Next(Soon());
  ASSERT_TRUE(ready.ok() && ready->pins.ok());
  EXPECT_EQ(ready->cause, WaitCause::kWriteBack);
}

}  // namespace
}  // namespace terrace
