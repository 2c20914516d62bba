// Defects that were found once: each has the one test that found it wanting.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/contract/contract_fixture.h"
#include "tests/runtime/fault_training.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class FaultRegression : public ContractTest {
 protected:
  // Both are wanted by one group; {first, second} in this order.
  absl::Status PushBoth(RequestQueue& queue, TensorId first, TensorId second) {
    return queue.Push({{first, Access::kUpdate}, {second, Access::kUpdate}}, 0,
                      Soon());
  }
  // Pushes an overwrite that is admitted and never taken: a reader has
  // to wait for it then.
  void LeaveUntaken(RequestQueue& queue, TensorId tensor) {
    ASSERT_TRUE(queue.Push({{tensor, Access::kOverwrite}}, 0, Soon()).ok());
    stats();  // answered in the turn that admits it, or in a later one
    ASSERT_TRUE(world().WaitUntil([&] {
      auto probe = world().OpenQueue(kPage, 1);
      EXPECT_TRUE(probe->Push({{tensor, Access::kRead}}, 0, Soon()).ok());
      return absl::IsDeadlineExceeded(probe->Next(Shortly()).status());
    }));
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, FaultRegression,
                         testing::ValuesIn(kDiskWorlds), WorldParamName);

// The queue said that only own pins blocked it, and the step ended as
// FailedPrecondition, although kernels were about to give their slots back.
TEST_P(FaultRegression, AStepGoesOnWithTheSlotsThatAFailedWriteLeaves) {
  FaultTraining training(GetParam(), {.prefetch = false, .paths = 1});
  for (int step = 1; step <= 2; ++step) {
    training.Draw();
    const absl::Status status = training.Step();
    ASSERT_TRUE(status.ok()) << status;
  }
  for (int64_t n = 1; n <= 4; ++n) {
    SCOPED_TRACE(absl::StrCat("write ", n));
    training.LetGo();
    training.faults().FailPlace(n, {FaultKind::kError, EIO},
                                CallFilter::kWrites);
    training.Draw();
    absl::Status status = training.Step();
    if (status.ok()) {  // a commit waits for no write: the next one tells
      ASSERT_NE(GetParam(), TestWorld::kVirtual);
      training.Draw();
      status = training.Step();
    }
    ASSERT_TRUE(absl::IsUnavailable(status)) << status;
    EXPECT_THAT(Message(status), HasSubstr("write failed"));
    training.LetGo();
    const absl::Status again = training.Step();
    ASSERT_TRUE(again.ok()) << again;
    EXPECT_EQ(training.Difference(), "");
  }
  EXPECT_EQ(training.StateDifference(), "");
}

// The writer waited for its deadline.
TEST_P(FaultRegression, AWriterBehindALateWriteFailsAtOnce) {
  TestRuntimeOptions options;
  options.io_timeout = absl::Milliseconds(100);
  Make(1, options);
  const TensorId a = world().Register("weights of a", kPage);
  auto queue = world().OpenQueue(kPage, 1);
  world().faults().FailAll({.kind = FaultKind::kNever}, CallFilter::kWrites);
  world().Fill(*queue, a, 3);
  ASSERT_TRUE(
      world().WaitUntil([&] { return stats().host.quarantined_bytes > 0; }));
  const Time before = world().Now();
  const Time much_later = before + absl::Hours(1);
  for (const Access access : {Access::kUpdate, Access::kOverwrite}) {
    ASSERT_TRUE(queue->Push({{a, access}}, 0, much_later).ok());
    absl::StatusOr<Ready> ready = queue->Next(much_later);
    ASSERT_TRUE(ready.ok()) << ready.status();
    EXPECT_TRUE(absl::IsDeadlineExceeded(ready->pins.status()))
        << ready->pins.status();
    const std::string message = Message(ready->pins.status());
    EXPECT_THAT(message, HasSubstr("'weights of a'"));
    EXPECT_THAT(message, HasSubstr(absl::StrCat(stats().paths()[0].disk.file,
                                                ", offset ")));
  }
  EXPECT_LT(world().Now(), before + absl::Minutes(1));
  // What is still in the arena can be read meanwhile.
  EXPECT_TRUE(world().Holds(*queue, a, 3));
  world().faults().Clear();
  runtime().Prefetch({});
  ASSERT_TRUE(
      world().WaitUntil([&] { return stats().host.quarantined_bytes == 0; }));
  world().Fill(*queue, a, 4);
  EXPECT_TRUE(world().Holds(*queue, a, 4));
}

// It said only that there was some such slot.
TEST_P(FaultRegression, WhoFindsNoSlotBehindALateReadIsToldWhichReadItIs) {
  TestRuntimeOptions options;
  options.io_timeout = HealthyTimeout();  // its writes are in time
  Make(1, options);
  const TensorId a = world().Register("a", kPage);
  const TensorId b = world().Register("b", kPage);
  auto queue = world().OpenQueue(kPage, 1);
  world().Fill(*queue, a, 1);
  world().Fill(*queue, b, 2);  // a has left
  ASSERT_TRUE(
      world().WaitUntil([&] { return stats().bytes_written() == 2 * kPlace; }));
  world().faults().FailAll({.kind = FaultKind::kNever}, CallFilter::kReads);
  const absl::Status late = world().Take(*queue, a, Access::kRead).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  const IoRequest read = world().faults().first_disturbed();
  const std::string place =
      absl::StrCat(stats().paths()[0].disk.file, ", offset ", read.offset, ", ",
                   read.size_bytes, " bytes");
  EXPECT_THAT(Message(late), HasSubstr(place));
  const absl::Status next = world().Take(*queue, b, Access::kRead).status();
  EXPECT_TRUE(absl::IsDeadlineExceeded(next)) << next;
  EXPECT_THAT(Message(next), HasSubstr(place));
  world().faults().Clear();
  runtime().Prefetch({});
  ASSERT_TRUE(
      world().WaitUntil([&] { return stats().host.quarantined_bytes == 0; }));
  EXPECT_TRUE(world().Holds(*queue, a, 1));
  EXPECT_TRUE(world().Holds(*queue, b, 2));
}

// They were published: the tensor was then what happened to lie there.
TEST_P(FaultRegression, AnUntakenOverwriteLeavesTheContentsWhenItsQueueCloses) {
  for (const int others : {0, 6}) {  // a stays in the arena, or leaves it
    SCOPED_TRACE(others);
    Make(4);
    auto reader = world().OpenQueue(kPage, 1);
    const std::vector<TensorId> rest = world().RegisterMany(others, kPage);
    const TensorId a = world().Register("a", kPage);
    for (int i = 0; i < others / 2; ++i) world().Fill(*reader, rest[i], 1);
    world().Fill(*reader, a, 7);
    for (int i = others / 2; i < others; ++i) world().Fill(*reader, rest[i], 1);
    const int64_t reads = stats().demand_reads;
    auto writer = world().OpenQueue(kPage, 1);
    LeaveUntaken(*writer, a);
    writer.reset();
    EXPECT_TRUE(world().Holds(*reader, a, 7));
    EXPECT_EQ(stats().demand_reads > reads, others > 0);
  }
}

TEST_P(FaultRegression, AnUntakenOverwriteOfNothingLeavesNothing) {
  Make(4);  // both windows, the tensor and the probe of LeaveUntaken
  const TensorId a = world().Register("a", kPage);
  auto writer = world().OpenQueue(kPage, 1);
  auto reader = world().OpenQueue(kPage, 1);
  LeaveUntaken(*writer, a);
  writer.reset();
  absl::StatusOr<Pin> pin = world().Take(*reader, a, Access::kRead);
  EXPECT_TRUE(absl::IsFailedPrecondition(pin.status())) << pin.status();
  EXPECT_THAT(Message(pin.status()), HasSubstr("never written"));
  EXPECT_EQ(stats().bytes_written(), 0);
  world().Fill(*reader, a, 2);
  EXPECT_TRUE(world().Holds(*reader, a, 2));
}

// A writer that also waits for something else: the copy was hashed, gave way
// and was hashed again for ever.
TEST_P(FaultRegression, AWriteBackGivesWayToAWaitingWriterOnlyOnce) {
  Make(3);
  const TensorId a = world().Register("a", kPage);
  const TensorId b = world().Register("b", kPage);
  auto mine = world().OpenQueue(kPage, 2);
  auto other = world().OpenQueue(kPage, 1);
  world().Fill(*other, b, 1);
  absl::StatusOr<Pin> held = world().Take(*other, b, Access::kUpdate);
  ASSERT_TRUE(held.ok()) << held.status();
  absl::StatusOr<Pin> pin = world().Take(*mine, a, Access::kOverwrite);
  ASSERT_TRUE(pin.ok()) << pin.status();
  WritePattern(pin->data(), 5);
  ASSERT_TRUE(PushBoth(*mine, a, b).ok());
  const int64_t before = stats().bytes_written();
  pin->Release();
  EXPECT_TRUE(world().WaitUntil(
      [&] { return stats().bytes_written() >= before + kPlace; }));
  held->Release();
  absl::StatusOr<Ready> ready = mine->Next(Soon());
  ASSERT_TRUE(ready.ok() && ready->pins.ok());
  EXPECT_TRUE(HasPattern((*ready->pins)[0].data(), 5));
  EXPECT_TRUE(HasPattern((*ready->pins)[1].data(), 1));
}

}  // namespace
}  // namespace terrace
