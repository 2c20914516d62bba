// What accesses promise and how pins end: pin.h, request.h.
#include <thread>

#include "tests/contract/contract_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class PinContract : public ContractTest {
 protected:
  // Makes the tensors in the window leave it, written back.
  void Flush(RequestQueue& queue, int slots) {
    for (int i = 0; i < slots; ++i) {
      const TensorId filler =
          world().Register("filler " + std::to_string(fillers_++), kPage);
      world().Fill(queue, filler, 200);
    }
  }
  // Whether so many tensors are written in all, where none stays. Others may
  // have made room for what a Flush put there.
  bool AreWritten(int tensors) {
    return world().WaitUntil(
        [&] { return stats().bytes_written() == tensors * kPlace; });
  }
  int fillers_ = 0;
};
INSTANTIATE_TEST_SUITE_P(Worlds, PinContract, testing::ValuesIn(kAllWorlds),
                         WorldParamName);

TEST_P(PinContract, OverwriteFetchesNothing) {
  Make(2);
  const std::vector<TensorId> tensors = world().RegisterMany(8, kPage);
  auto queue = world().OpenQueue(kPage, 2);
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < 8; ++i) world().Fill(*queue, tensors[i], round + i);
  }
  EXPECT_EQ(stats().bytes_read(), 0);
  EXPECT_EQ(stats().demand_reads, 0);
  for (int i = 0; i < 8; ++i) {
    EXPECT_TRUE(world().Holds(*queue, tensors[i], 1 + i));
  }
}

TEST_P(PinContract, WhatWasNeverWrittenCannotBeRead) {
  Make(2);
  const TensorId a = world().Register("a", kPage);
  auto queue = world().OpenQueue(kPage, 2);
  for (Access access : {Access::kRead, Access::kUpdate}) {
    absl::StatusOr<Pin> pin = world().Take(*queue, a, access);
    EXPECT_TRUE(absl::IsFailedPrecondition(pin.status())) << pin.status();
    EXPECT_THAT(Message(pin.status()), HasSubstr("'a'"));
  }
  world().Fill(*queue, a, 1);
  EXPECT_TRUE(world().Holds(*queue, a, 1));
}

TEST_P(PinContract, DataIsExactlyTheTensorAndAligned) {
  Make(8);
  for (const int64_t size : {int64_t{1}, int64_t{4095}, int64_t{4097}}) {
    const TensorId tensor = world().Register(std::to_string(size), size);
    auto queue = world().OpenQueue(2 * kPage, 1);
    absl::StatusOr<Pin> pin = world().Take(*queue, tensor, Access::kOverwrite);
    ASSERT_TRUE(pin.ok());
    EXPECT_EQ(pin->data().size(), static_cast<size_t>(size));
    EXPECT_EQ(reinterpret_cast<uintptr_t>(pin->data().data()) % 4096, 0u);
  }
}

TEST_P(PinContract, ReadersShareAndAWriterIsAlone) {
  Make(4);
  const TensorId a = world().Register("a", kPage);
  auto one = world().OpenQueue(kPage, 1);
  auto two = world().OpenQueue(kPage, 1);
  world().Fill(*one, a, 1);
  absl::StatusOr<Pin> reader = world().Take(*one, a, Access::kRead);
  absl::StatusOr<Pin> other = world().Take(*two, a, Access::kRead);
  ASSERT_TRUE(reader.ok() && other.ok());
  EXPECT_EQ(reader->data().data(), other->data().data());
  ASSERT_TRUE(two->Push({{a, Access::kUpdate}}, 0, Soon()).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(two->Next(Shortly()).status()));
  other->Release();
  EXPECT_TRUE(absl::IsDeadlineExceeded(two->Next(Shortly()).status()));
  reader->Release();
  absl::StatusOr<Ready> writer = two->Next(Soon());
  ASSERT_TRUE(writer.ok() && writer->pins.ok());
  ASSERT_TRUE(one->Push({{a, Access::kRead}}, 0, Soon()).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(one->Next(Shortly()).status()));
  WritePattern(writer->pins->front().data(), 2);
  writer->pins->clear();
  absl::StatusOr<Ready> last = one->Next(Soon());
  ASSERT_TRUE(last.ok() && last->pins.ok());
  EXPECT_TRUE(HasPattern(last->pins->front().data(), 2));
}

TEST_P(PinContract, AnUpdateIsWrittenBackAndFoundAgain) {
  Make(2);
  const TensorId a = world().Register("a", kPage);
  auto queue = world().OpenQueue(kPage, 2);
  world().Fill(*queue, a, 1);
  Flush(*queue, 4);
  {
    absl::StatusOr<Pin> pin = world().Take(*queue, a, Access::kUpdate);
    ASSERT_TRUE(pin.ok()) << pin.status();
    EXPECT_TRUE(HasPattern(pin->data(), 1));
    WritePattern(pin->data(), 2);
  }
  Flush(*queue, 4);
  EXPECT_TRUE(world().Holds(*queue, a, 2));
}

TEST_P(PinContract, WhatDoesNotStayIsWrittenAtOnce) {
  Make(2);
  const TensorId a = world().Register("a", kPage);
  auto queue = world().OpenQueue(kPage, 2);
  world().Fill(*queue, a, 1);
  // No request asks for its slot.
  EXPECT_TRUE(AreWritten(1));
}

TEST_P(PinContract, AReaderBetweenPublishAndWriteBackDoesNotStopIt) {
  Make(1);
  const std::vector<TensorId> tensors = world().RegisterMany(2, kPage);
  auto queue = world().OpenQueue(kPage, 1);
  {
    absl::StatusOr<Pin> pin =
        world().Take(*queue, tensors[0], Access::kOverwrite);
    ASSERT_TRUE(pin.ok());
    WritePattern(pin->data(), 1);
    // Pushed before the release, so admitted in the same step of the mover.
    ASSERT_TRUE(queue->Push({{tensors[0], Access::kRead}}, 0, Soon()).ok());
  }
  absl::StatusOr<Ready> reader = queue->Next(Soon());
  ASSERT_TRUE(reader.ok() && reader->pins.ok());
  reader->pins->clear();
  world().Fill(*queue, tensors[1], 2);  // needs the slot
  EXPECT_TRUE(world().Holds(*queue, tensors[0], 1));
}

TEST_P(PinContract, ReleaseUnchangedRestoresACleanTensor) {
  Make(2);
  const TensorId a = world().Register("a", kPage);
  auto queue = world().OpenQueue(kPage, 2);
  world().Fill(*queue, a, 1);
  Flush(*queue, 4);
  ASSERT_TRUE(AreWritten(5));  // its own write is not under way any more
  absl::StatusOr<Pin> pin = world().Take(*queue, a, Access::kUpdate);
  ASSERT_TRUE(pin.ok());
  pin->ReleaseUnchanged();
  EXPECT_TRUE(world().Holds(*queue, a, 1));
  queue.reset();
  ASSERT_TRUE(world().WaitUntil([&] { return stats().window_bytes == 0; }));
  EXPECT_EQ(stats().bytes_written(), 5 * kPlace);  // not written again
}

TEST_P(PinContract, ReleaseUnchangedOfADirtyTensorStillWritesIt) {
  Make(2);
  const TensorId a = world().Register("a", kPage);
  auto queue = world().OpenQueue(kPage, 2);
  {
    absl::StatusOr<Pin> pin = world().Take(*queue, a, Access::kOverwrite);
    ASSERT_TRUE(pin.ok());
    WritePattern(pin->data(), 3);
    ASSERT_TRUE(queue->Push({{a, Access::kUpdate}}, 0, Soon()).ok());
  }
  absl::StatusOr<Ready> again = queue->Next(Soon());
  ASSERT_TRUE(again.ok() && again->pins.ok());
  again->pins->front().ReleaseUnchanged();
  Flush(*queue, 4);
  EXPECT_TRUE(world().Holds(*queue, a, 3));
}

TEST_P(PinContract, ReleaseUnchangedOfAnOverwriteRestoresTheLowerCopy) {
  Make(2);
  const TensorId a = world().Register("a", kPage);
  const TensorId fresh = world().Register("fresh", kPage);
  auto queue = world().OpenQueue(kPage, 2);
  world().Fill(*queue, a, 1);
  Flush(*queue, 4);
  ASSERT_TRUE(AreWritten(5));
  absl::StatusOr<Pin> pin = world().Take(*queue, a, Access::kOverwrite);
  ASSERT_TRUE(pin.ok());
  pin->ReleaseUnchanged();
  EXPECT_TRUE(world().Holds(*queue, a, 1));
  // What was never written is as it was, too.
  pin = world().Take(*queue, fresh, Access::kOverwrite);
  ASSERT_TRUE(pin.ok());
  pin->ReleaseUnchanged();
  EXPECT_TRUE(absl::IsFailedPrecondition(
      world().Take(*queue, fresh, Access::kRead).status()));
}

TEST_P(PinContract, DiscardMakesTheLowerCopyTheTruth) {
  Make(2);
  const TensorId a = world().Register("a", kPage);
  auto queue = world().OpenQueue(kPage, 2);
  world().Fill(*queue, a, 1);
  Flush(*queue, 4);
  ASSERT_TRUE(AreWritten(5));
  for (Access access : {Access::kUpdate, Access::kOverwrite}) {
    absl::StatusOr<Pin> pin = world().Take(*queue, a, access);
    ASSERT_TRUE(pin.ok());
    WritePattern(pin->data(), 99);
    pin->Discard();
    EXPECT_TRUE(world().Holds(*queue, a, 1));
  }
}

TEST_P(PinContract, DiscardWithoutALowerCopyIsDataLoss) {
  Make(4);
  const TensorId a = world().Register("a", kPage);
  const TensorId b = world().Register("b", kPage);
  auto queue = world().OpenQueue(kPage, 1);
  // With room outside the window it stays there, dirty.
  world().Fill(*queue, a, 1);
  ASSERT_TRUE(queue->BeginStep(1).ok());
  absl::StatusOr<Pin> pin = world().Take(*queue, a, Access::kUpdate);
  ASSERT_TRUE(pin.ok());
  pin->Discard();
  for (Access access : {Access::kRead, Access::kUpdate, Access::kOverwrite}) {
    const absl::Status lost = world().Take(*queue, a, access).status();
    EXPECT_TRUE(absl::IsDataLoss(lost)) << lost;
    EXPECT_THAT(Message(lost), HasSubstr("'a'"));
  }
  EXPECT_TRUE(absl::IsDataLoss(queue->CommitStep({.step = 1})));
  // No other tensor suffers.
  world().Fill(*queue, b, 2);
  EXPECT_TRUE(world().Holds(*queue, b, 2));
}

TEST_P(PinContract, EndingTwiceEndsOnce) {
  Make(2);
  const TensorId a = world().Register("a", kPage);
  auto queue = world().OpenQueue(kPage, 2);
  absl::StatusOr<Pin> pin = world().Take(*queue, a, Access::kOverwrite);
  ASSERT_TRUE(pin.ok());
  WritePattern(pin->data(), 1);
  pin->Release();
  EXPECT_FALSE(pin->valid());
  EXPECT_TRUE(pin->data().empty());
  pin->Discard();
  pin->Release();
  EXPECT_TRUE(world().Holds(*queue, a, 1));
}

TEST_P(PinContract, PinsMoveAndTheirLastOwnerEndsThem) {
  Make(2);
  const TensorId a = world().Register("a", kPage);
  auto queue = world().OpenQueue(kPage, 2);
  absl::StatusOr<Pin> pin = world().Take(*queue, a, Access::kOverwrite);
  ASSERT_TRUE(pin.ok());
  Pin moved = *std::move(pin);
  WritePattern(moved.data(), 1);
  moved = Pin();
  EXPECT_TRUE(world().Holds(*queue, a, 1));
}

TEST_P(PinContract, PinsMayBeReleasedOnOtherThreads) {
  Make(4);
  const std::vector<TensorId> tensors = world().RegisterMany(16, kPage);
  auto queue = world().OpenQueue(kPage, 4);
  for (int i = 0; i < 16; ++i) {
    absl::StatusOr<Pin> pin =
        world().Take(*queue, tensors[i], Access::kOverwrite);
    ASSERT_TRUE(pin.ok()) << pin.status();
    std::thread worker([pin = *std::move(pin), i]() mutable {
      WritePattern(pin.data(), i);
      pin.Release();
    });
    worker.join();
  }
  for (int i = 0; i < 16; ++i) {
    EXPECT_TRUE(world().Holds(*queue, tensors[i], i));
  }
}

TEST_P(PinContract, AcquireIsAQueueOfOne) {
  Make(3);
  const TensorId a = world().Register("a", kPage);
  EXPECT_TRUE(absl::IsInvalidArgument(
      runtime().Acquire(TensorId{5}, Access::kRead, Soon()).status()));
  for (int round = 0; round < 20; ++round) {
    absl::StatusOr<Pin> pin = runtime().Acquire(
        a, round == 0 ? Access::kOverwrite : Access::kUpdate, Soon());
    ASSERT_TRUE(pin.ok()) << pin.status();
    if (round > 0) {
      EXPECT_TRUE(HasPattern(pin->data(), round - 1));
    }
    WritePattern(pin->data(), round);
  }
  EXPECT_TRUE(world().WaitUntil([&] { return stats().window_bytes == 0; }));
}

}  // namespace
}  // namespace terrace
