// The end of a tensor: runtime.h's Unregister.
#include "tests/contract/contract_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class UnregisterContract : public ContractTest {
 protected:
  int64_t HomeBytes() {
    const Stats now = stats();
    int64_t used_bytes = 0;
    for (const TierStats& tier : now.tiers) used_bytes += tier.used_bytes;
    return used_bytes - now.tiers.front().used_bytes;  // that of memory
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, UnregisterContract,
                         testing::ValuesIn(kAllWorlds), WorldParamName);

// Their faults and what they count are of disks.
class UnregisterOverDisks : public UnregisterContract {};
INSTANTIATE_TEST_SUITE_P(Worlds, UnregisterOverDisks,
                         testing::ValuesIn(kDiskWorlds), WorldParamName);

TEST_P(UnregisterContract, HomeAndNameAreFreeAndTheIdIsGone) {
  Make(4);
  const TensorId kept = world().Register("kept", kPage);
  const TensorId gone = world().Register("gone", kPage);
  EXPECT_EQ(HomeBytes(), 2 * kPlace);
  const absl::Status status = runtime().Unregister(gone);
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(HomeBytes(), kPlace);
  EXPECT_TRUE(absl::IsInvalidArgument(runtime().Unregister(gone)));
  EXPECT_TRUE(absl::IsInvalidArgument(
      runtime().Acquire(gone, Access::kRead, Soon()).status()));
  runtime().Prefetch({gone});
  auto queue = world().OpenQueue(kPage, 1);
  EXPECT_TRUE(absl::IsInvalidArgument(
      queue->Push({{gone, Access::kOverwrite}}, 0, Soon())));
  const TensorId again = world().Register("gone", kPage);
  EXPECT_NE(again, gone);
  EXPECT_NE(again, kept);
  EXPECT_EQ(HomeBytes(), 2 * kPlace);
}

TEST_P(UnregisterContract, AnUnknownTensorIsInvalid) {
  Make(4);
  for (const int64_t id : {-1, 0, 7}) {
    EXPECT_TRUE(absl::IsInvalidArgument(runtime().Unregister(TensorId{id})));
  }
}

TEST_P(UnregisterContract, WhatIsPinnedIsRefusedAndUnchanged) {
  Make(4);
  const TensorId a = world().Register("a", kPage);
  auto queue = world().OpenQueue(kPage, 2);
  world().Fill(*queue, a, 3);
  {
    absl::StatusOr<Pin> pin = world().Take(*queue, a, Access::kRead);
    ASSERT_TRUE(pin.ok()) << pin.status();
    const absl::Status refused = runtime().Unregister(a);
    EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
    EXPECT_THAT(Message(refused), HasSubstr("'a'"));
    // Also when only the pin is left of its queue.
    queue.reset();
    EXPECT_TRUE(absl::IsFailedPrecondition(runtime().Unregister(a)));
    EXPECT_TRUE(HasPattern(pin->data(), 3));
  }
  queue = world().OpenQueue(kPage, 2);
  EXPECT_TRUE(world().Holds(*queue, a, 3));
  EXPECT_TRUE(runtime().Unregister(a).ok());
}

TEST_P(UnregisterContract, WhatAGroupWantsIsRefused) {
  Make(4);
  const TensorId a = world().Register("a", kPage);
  const TensorId b = world().Register("b", kPage);
  auto queue = world().OpenQueue(kPage, 2);
  auto other = world().OpenQueue(kPage, 1);
  absl::StatusOr<Pin> pin = world().Take(*other, b, Access::kOverwrite);
  ASSERT_TRUE(pin.ok()) << pin.status();
  // Waits for the writer of b.
  ASSERT_TRUE(
      queue->Push({{a, Access::kOverwrite}, {b, Access::kUpdate}}, 0, Soon())
          .ok());
  const absl::Status refused = runtime().Unregister(a);
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  pin->Release();
  EXPECT_TRUE(queue->Next(Soon())->pins.ok());
  EXPECT_TRUE(runtime().Unregister(a).ok());
}

TEST_P(UnregisterOverDisks, GroupsOfAClosedQueueDoNotKeepIt) {
  Make(2);
  const std::vector<TensorId> tensors = world().RegisterMany(4, kPage);
  auto queue = world().OpenQueue(kPage, 2);
  for (int i = 0; i < 4; ++i) world().Fill(*queue, tensors[i], i);
  ASSERT_TRUE(
      world().WaitUntil([&] { return stats().bytes_written() >= 4 * kPlace; }));
  world().faults().FailAll({.kind = FaultKind::kDelay}, CallFilter::kReads);
  for (int i = 0; i < 4; ++i) {
    ASSERT_TRUE(queue->Push({{tensors[i], Access::kUpdate}}, 0, Soon()).ok());
  }
  queue.reset();
  for (const TensorId tensor : tensors) {
    const absl::Status status = runtime().Unregister(tensor);
    EXPECT_TRUE(status.ok()) << status;
  }
  EXPECT_EQ(HomeBytes(), 0);
  // Nothing of them is left in the arena: all of it can be a window.
  EXPECT_NE(world().OpenQueue(kPage, 2), nullptr);
}

TEST_P(UnregisterContract, AResidentAndItsDirtyBytesGo) {
  Make(4);
  const TensorId a = world().Register("a", kPage);
  auto queue = world().OpenQueue(kPage, 1);
  world().Fill(*queue, a, 1);
  EXPECT_EQ(stats().resident_bytes, kPlace);
  EXPECT_TRUE(runtime().Unregister(a).ok());
  EXPECT_EQ(stats().resident_bytes, 0);
  EXPECT_EQ(stats().host.used_bytes, kPlace);  // the window
  EXPECT_EQ(stats().bytes_written(), 0);
}

TEST_P(UnregisterOverDisks, AWriteBackUnderWayIsWaitedFor) {
  Make(1);
  const TensorId a = world().Register("a", kPage);
  auto queue = world().OpenQueue(kPage, 1);
  world().faults().FailAll({.kind = FaultKind::kDelay}, CallFilter::kWrites);
  world().Fill(*queue, a, 1);
  ASSERT_TRUE(world().WaitUntil([&] { return world().faults().faults() > 0; }));
  EXPECT_TRUE(runtime().Unregister(a).ok());
  EXPECT_EQ(HomeBytes(), 0);
  // Its slot is free for the next.
  const TensorId b = world().Register("a", kPage);
  world().Fill(*queue, b, 2);
  EXPECT_TRUE(world().Holds(*queue, b, 2));
}

TEST_P(UnregisterOverDisks, AWriteThatNeverEndsKeepsTheHomeOnly) {
  TestRuntimeOptions options;
  options.io_timeout = absl::Milliseconds(100);
  Make(2, options);
  const TensorId a = world().Register("a", kPage);
  auto queue = world().OpenQueue(kPage, 2);
  world().faults().FailAll({.kind = FaultKind::kNever}, CallFilter::kWrites);
  world().Fill(*queue, a, 1);
  ASSERT_TRUE(world().WaitUntil([&] { return world().faults().faults() > 0; }));
  EXPECT_TRUE(runtime().Unregister(a).ok());
  EXPECT_EQ(HomeBytes(), kPlace);
  // The name is free; the path is not to be trusted with it yet.
  EXPECT_TRUE(stats().paths()[0].degraded);
  TensorSpec spec;
  spec.name = "a";
  spec.size_bytes = kPage;
  EXPECT_TRUE(absl::IsUnavailable(runtime().Register(spec).status()));
  world().faults().Clear();
  runtime().Prefetch({});
  EXPECT_TRUE(world().WaitUntil([&] { return HomeBytes() == 0; }));
}

TEST_P(UnregisterContract, AStepThatRepeatsWithoutItGoesOn) {
  Make(2);
  const std::vector<TensorId> tensors = world().RegisterMany(6, kPage);
  auto queue = world().OpenQueue(kPage, 2);
  for (int i = 0; i < 6; ++i) world().Fill(*queue, tensors[i], i);
  for (int64_t step = 1; step <= 4; ++step) {
    if (step == 3) {
      const absl::Status status = runtime().Unregister(tensors[3]);
      ASSERT_TRUE(status.ok()) << status;
    }
    ASSERT_TRUE(queue->BeginStep(step).ok());
    for (int i = 0; i < 6; ++i) {
      if (step >= 3 && i == 3) continue;
      EXPECT_TRUE(world().Holds(*queue, tensors[i], i));
    }
    ASSERT_TRUE(queue->CommitStep({.step = step}).ok());
  }
}

TEST_P(UnregisterContract, AfterCloseItIsCancelled) {
  Make(2);
  const TensorId a = world().Register("a", kPage);
  ASSERT_TRUE(runtime().Close(Soon()).ok());
  EXPECT_TRUE(absl::IsCancelled(runtime().Unregister(a)));
}

}  // namespace
}  // namespace terrace
