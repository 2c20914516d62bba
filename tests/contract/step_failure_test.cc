// Whose step hears of a transfer that failed, and when: request.h.
#include "tests/contract/failing_disk.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class StepFailure : public FailingDisk {
 protected:
  // A tensor with pattern 7, whose write-back failed after its step; a disk
  // that is mended.
  TensorId FailAfterCommit(RequestQueue& queue) {
    const TensorId tensor = world().Register("a", kPage);
    EXPECT_TRUE(queue.BeginStep(1).ok());
    absl::StatusOr<Pin> pin = world().Take(queue, tensor, Access::kOverwrite);
    EXPECT_TRUE(pin.ok()) << pin.status();
    EXPECT_TRUE(queue.CommitStep({.step = 1}).ok());
    world().faults().FailAll({.kind = FaultKind::kError, .error = ENOSPC},
                             CallFilter::kWrites);
    WritePattern(pin->data(), 7);
    pin->Release();
    EXPECT_TRUE(world().WaitUntil([&] { return stats().paths()[0].degraded; }));
    Mend();
    return tensor;
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, StepFailure, testing::ValuesIn(kDiskWorlds),
                         WorldParamName);

TEST_P(StepFailure, CommitReturnsTheFirstErrorSinceBeginStep) {
  Make(2);
  auto queue = world().OpenQueue(kPage, 2);
  const std::vector<TensorId> tensors = OnDisk(*queue, 2);
  ASSERT_TRUE(queue->BeginStep(1).ok());
  world().faults().FailAll(kGone, CallFilter::kReads);
  const absl::Status first =
      world().Take(*queue, tensors[1], Access::kRead).status();
  const absl::Status second =
      world().Take(*queue, tensors[0], Access::kRead).status();
  EXPECT_NE(first, second);
  Mend();
  EXPECT_EQ(queue->CommitStep({.step = 1}), first);
  EXPECT_EQ(stats().first_error, first);
  // Said once: the next step begins without it.
  ASSERT_TRUE(queue->BeginStep(2).ok());
  EXPECT_TRUE(world().Holds(*queue, tensors[0], 0));
  EXPECT_TRUE(queue->CommitStep({.step = 2}).ok());
}

TEST_P(StepFailure, ErrorsAreTheQueuesOwn) {
  Make(4);
  auto queue = world().OpenQueue(kPage, 2);
  auto other = world().OpenQueue(kPage, 2);
  const std::vector<TensorId> tensors = OnDisk(*queue, 2);
  ASSERT_TRUE(queue->BeginStep(1).ok());
  ASSERT_TRUE(other->BeginStep(1).ok());
  world().faults().FailAll(kGone, CallFilter::kReads);
  EXPECT_FALSE(world().Take(*queue, tensors[0], Access::kRead).ok());
  Mend();
  EXPECT_TRUE(other->CommitStep({.step = 1}).ok());
  EXPECT_FALSE(queue->CommitStep({.step = 1}).ok());
}

TEST_P(StepFailure, AWriteBackThatFailsAfterCommitIsTheNextCommits) {
  Make(2);
  auto queue = world().OpenQueue(kPage, 2);
  const TensorId a = FailAfterCommit(*queue);
  ASSERT_TRUE(queue->BeginStep(2).ok());
  const absl::Status error = queue->CommitStep({.step = 2});
  EXPECT_TRUE(absl::IsResourceExhausted(error)) << error;
  EXPECT_THAT(Message(error), HasSubstr("ENOSPC"));
  EXPECT_TRUE(world().Holds(*queue, a, 7));
}

TEST_P(StepFailure, AWriteBackThatFailsAfterCommitEndsWithAnAbort) {
  Make(2);
  auto queue = world().OpenQueue(kPage, 2);
  const TensorId a = FailAfterCommit(*queue);
  ASSERT_TRUE(queue->BeginStep(2).ok());
  ASSERT_TRUE(queue->AbortStep().ok());
  ASSERT_TRUE(queue->BeginStep(2).ok());
  const absl::Status error = queue->CommitStep({.step = 2});
  EXPECT_TRUE(error.ok()) << error;
  EXPECT_TRUE(world().Holds(*queue, a, 7));
}

TEST_P(StepFailure, AWriteBackMadeGoodBeforeAStepIsNotThatStepsError) {
  Make(3);
  auto queue = world().OpenQueue(kPage, 2);
  // Outside the window, so that the next one is in it.
  absl::StatusOr<Pin> room =
      world().Take(*queue, world().Register("room", kPage), Access::kOverwrite);
  ASSERT_TRUE(room.ok()) << room.status();
  const TensorId a = world().Register("a", kPage);
  ASSERT_TRUE(queue->BeginStep(1).ok());
  absl::StatusOr<Pin> pin = world().Take(*queue, a, Access::kOverwrite);
  ASSERT_TRUE(pin.ok()) << pin.status();
  EXPECT_TRUE(queue->CommitStep({.step = 1}).ok());
  world().faults().FailAll({.kind = FaultKind::kError, .error = ENOSPC},
                           CallFilter::kWrites);
  WritePattern(pin->data(), 7);
  pin->Release();
  ASSERT_TRUE(world().WaitUntil([&] { return stats().paths()[0].degraded; }));
  Mend();
  room->ReleaseUnchanged();
  auto other = world().OpenQueue(kPage, 1);  // tries again
  ASSERT_TRUE(
      world().WaitUntil([&] { return stats().bytes_written() == kPlace; }));
  ASSERT_TRUE(queue->BeginStep(2).ok());
  EXPECT_TRUE(world().Holds(*queue, a, 7));
  const absl::Status whole = queue->CommitStep({.step = 2});
  EXPECT_TRUE(whole.ok()) << whole;
}

TEST_P(StepFailure, AFetchThatFailedBeforeAStepIsNotThatStepsError) {
  Make(2);
  auto queue = world().OpenQueue(kPage, 2);
  const std::vector<TensorId> tensors = OnDisk(*queue, 2);
  world().faults().FailAll(kGone, CallFilter::kReads);
  EXPECT_FALSE(world().Take(*queue, tensors[0], Access::kRead).ok());
  Mend();
  ASSERT_TRUE(queue->BeginStep(1).ok());
  EXPECT_TRUE(world().Holds(*queue, tensors[0], 0));
  const absl::Status whole = queue->CommitStep({.step = 1});
  EXPECT_TRUE(whole.ok()) << whole;
}

TEST_P(StepFailure, AStepThatAsksForALostTensorIsNotWhole) {
  Make(2);
  auto queue = world().OpenQueue(kPage, 2);
  const std::vector<TensorId> tensors = OnDisk(*queue, 2);
  world().faults().FailAll({.kind = FaultKind::kBitFlip}, CallFilter::kReads);
  const absl::Status lost =
      world().Take(*queue, tensors[0], Access::kRead).status();
  ASSERT_TRUE(absl::IsDataLoss(lost)) << lost;
  Mend();
  for (int64_t step = 1; step <= 2; ++step) {
    ASSERT_TRUE(queue->BeginStep(step).ok());
    EXPECT_EQ(world().Take(*queue, tensors[0], Access::kRead).status(), lost);
    EXPECT_EQ(queue->CommitStep({.step = step}), lost);
  }
  // One that does not is.
  ASSERT_TRUE(queue->BeginStep(3).ok());
  EXPECT_TRUE(world().Holds(*queue, tensors[1], 1));
  EXPECT_TRUE(queue->CommitStep({.step = 3}).ok());
}

TEST_P(StepFailure, AbortForgetsTheErrorsOfItsStep) {
  Make(2);
  auto queue = world().OpenQueue(kPage, 2);
  const std::vector<TensorId> tensors = OnDisk(*queue, 2);
  ASSERT_TRUE(queue->BeginStep(1).ok());
  world().faults().FailAll(kGone, CallFilter::kReads);
  EXPECT_FALSE(world().Take(*queue, tensors[0], Access::kRead).ok());
  Mend();
  EXPECT_TRUE(queue->AbortStep().ok());
  ASSERT_TRUE(queue->BeginStep(1).ok());
  EXPECT_TRUE(world().Holds(*queue, tensors[0], 0));
  EXPECT_TRUE(queue->CommitStep({.step = 1}).ok());
}

}  // namespace
}  // namespace terrace
