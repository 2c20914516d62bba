// runtime.h's Close, and what every call says after it.
#include <atomic>
#include <thread>

#include "tests/contract/contract_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::Not;

class CloseContract : public ContractTest {
 protected:
  absl::Status Close() { return runtime().Close(Soon()); }
};
INSTANTIATE_TEST_SUITE_P(Worlds, CloseContract, testing::ValuesIn(kAllWorlds),
                         WorldParamName);

// Their faults and what they count are of disks.
class CloseOverDisks : public CloseContract {};
INSTANTIATE_TEST_SUITE_P(Worlds, CloseOverDisks, testing::ValuesIn(kDiskWorlds),
                         WorldParamName);

TEST_P(CloseContract, EveryCallAfterItIsCancelled) {
  Make(4);
  const TensorId a = world().Register("a", kPage);
  {
    auto queue = world().OpenQueue(kPage, 2);
    world().Fill(*queue, a, 1);
  }
  ASSERT_TRUE(Close().ok());
  TensorSpec spec;
  spec.name = "late";
  spec.size_bytes = kPage;
  EXPECT_TRUE(absl::IsCancelled(runtime().Register(spec).status()));
  EXPECT_TRUE(
      absl::IsCancelled(runtime().OpenQueue(kPage, 1, Soon()).status()));
  EXPECT_TRUE(
      absl::IsCancelled(runtime().Acquire(a, Access::kRead, Soon()).status()));
  runtime().Prefetch({a});
  EXPECT_TRUE(Close().ok());  // repeated
}

TEST_P(CloseOverDisks, GetStatsAfterItSaysWhatWasTrueAtTheEnd) {
  Make(4);
  const std::vector<TensorId> tensors = world().RegisterMany(8, kPage);
  {
    auto queue = world().OpenQueue(kPage, 2);
    for (int i = 0; i < 8; ++i) world().Fill(*queue, tensors[i], i);
  }
  ASSERT_TRUE(world().WaitUntil([&] { return stats().window_bytes == 0; }));
  const Stats before = stats();
  ASSERT_TRUE(Close().ok());
  const Stats after = stats();
  EXPECT_EQ(after.engine, before.engine);
  EXPECT_EQ(after.host.budget_bytes, 4 * kPlace);
  EXPECT_EQ(after.host.peak_bytes, before.host.peak_bytes);
  EXPECT_GT(after.bytes_written(), 0);
  EXPECT_EQ(after.bytes_written(), before.bytes_written());
  EXPECT_EQ(after.host.leaked_bytes, 0);
  ASSERT_EQ(after.paths().size(), 1u);
}

TEST_P(CloseContract, ItNamesWhoStillHoldsWhat) {
  Make(6);
  const TensorId a = world().Register("the weights of a", kPage);
  const TensorId b = world().Register("b", kPage);
  auto queue = world().OpenQueue(kPage, 2);
  world().Fill(*queue, b, 2);
  absl::StatusOr<Pin> pin = world().Take(*queue, a, Access::kOverwrite);
  ASSERT_TRUE(pin.ok());
  absl::Status refused = Close();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(Message(refused), HasSubstr("'the weights of a'"));
  EXPECT_THAT(Message(refused), HasSubstr("1 queues"));
  EXPECT_THAT(Message(refused), Not(HasSubstr("'b'")));
  // Held bytes stay usable.
  WritePattern(pin->data(), 9);
  EXPECT_TRUE(HasPattern(pin->data(), 9));
  queue.reset();
  refused = Close();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  EXPECT_THAT(Message(refused), Not(HasSubstr("queues")));
  pin->Release();
  EXPECT_TRUE(Close().ok());
}

TEST_P(CloseContract, ARefusedCloseHasCancelledWhatWasPushed) {
  Make(4);
  const std::vector<TensorId> tensors = world().RegisterMany(3, kPage);
  auto queue = world().OpenQueue(kPage, 2);
  for (const TensorId tensor : tensors) world().Fill(*queue, tensor, 1);
  ASSERT_TRUE(queue->BeginStep(1).ok());
  // Ready and never taken, or under way, or waiting.
  for (const TensorId tensor : tensors) {
    ASSERT_TRUE(queue->Push({{tensor, Access::kUpdate}}, 0, Soon()).ok());
  }
  const absl::Status refused = Close();
  EXPECT_TRUE(absl::IsFailedPrecondition(refused)) << refused;
  // What was never taken holds nothing.
  EXPECT_THAT(Message(refused), HasSubstr("1 queues"));
  EXPECT_THAT(Message(refused), Not(HasSubstr("'")));
  EXPECT_TRUE(absl::IsCancelled(queue->Next(absl::InfiniteFuture()).status()));
  EXPECT_TRUE(
      absl::IsCancelled(queue->Push({{tensors[0], Access::kRead}}, 0, Soon())));
  EXPECT_TRUE(absl::IsCancelled(queue->CommitStep({.step = 1})));
  EXPECT_TRUE(absl::IsCancelled(queue->BeginStep(2)));
  EXPECT_TRUE(absl::IsCancelled(queue->AbortStep()));
  EXPECT_TRUE(
      absl::IsCancelled(runtime().OpenQueue(kPage, 1, Soon()).status()));
  queue.reset();
  EXPECT_TRUE(Close().ok());
}

TEST_P(CloseOverDisks, ItWaitsForTransfersInFlight) {
  Make(2);
  const std::vector<TensorId> tensors = world().RegisterMany(4, kPage);
  auto queue = world().OpenQueue(kPage, 2);
  world().faults().FailAll({.kind = FaultKind::kDelay}, CallFilter::kWrites);
  for (int i = 0; i < 4; ++i) world().Fill(*queue, tensors[i], i);
  queue.reset();
  EXPECT_TRUE(Close().ok());
  EXPECT_EQ(stats().host.leaked_bytes, 0);
}

TEST_P(CloseOverDisks, PastItsDeadlineEngineAndArenaAreLeakedAndCounted) {
  Make(2);
  const TensorId a = world().Register("a", kPage);
  auto queue = world().OpenQueue(kPage, 2);
  world().faults().FailAll({.kind = FaultKind::kNever}, CallFilter::kWrites);
  world().Fill(*queue, a, 1);
  ASSERT_TRUE(world().WaitUntil(
      [&] { return world().faults().calls(CallFilter::kWrites) > 0; }));
  queue.reset();
  const absl::Status late = runtime().Close(Shortly());
  EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  EXPECT_EQ(stats().host.leaked_bytes, 2 * kPlace);
  EXPECT_TRUE(Close().ok());  // over is over
}

TEST_P(CloseContract, TheDestructorClosesUnderHeldPins) {
  Make(4);
  const TensorId a = world().Register("a", kPage);
  auto queue = world().OpenQueue(kPage, 2);
  absl::StatusOr<Pin> pin = world().Take(*queue, a, Access::kOverwrite);
  ASSERT_TRUE(pin.ok());
  queue.reset();
  world().Destroy();
  // The bytes stay; the release does nothing.
  WritePattern(pin->data(), 3);
  EXPECT_TRUE(HasPattern(pin->data(), 3));
  pin->Release();
}

// Only worlds with a mover thread: a customer on each of its own.
class BusyCloseContract : public CloseContract {};
INSTANTIATE_TEST_SUITE_P(Worlds, BusyCloseContract,
                         testing::Values(TestWorld::kMemory, TestWorld::kUring,
                                         TestWorld::kThreads),
                         WorldParamName);

TEST_P(BusyCloseContract, APendingNextIsCancelledByAnotherThreadsClose) {
  Make(4);
  const TensorId a = world().Register("a", kPage);
  auto holder = world().OpenQueue(kPage, 1);
  auto waiter = world().OpenQueue(kPage, 1);
  absl::StatusOr<Pin> pin = world().Take(*holder, a, Access::kOverwrite);
  ASSERT_TRUE(pin.ok());
  ASSERT_TRUE(
      waiter->Push({{a, Access::kOverwrite}}, 0, absl::InfiniteFuture()).ok());
  std::thread blocked([&] {
    // Whether the Close comes before it or while it waits.
    EXPECT_TRUE(
        absl::IsCancelled(waiter->Next(absl::InfiniteFuture()).status()));
    waiter.reset();
  });
  EXPECT_TRUE(absl::IsFailedPrecondition(Close()));
  blocked.join();
  pin->Release();
  holder.reset();
  EXPECT_TRUE(Close().ok());
}

TEST_P(BusyCloseContract, CloseWhileOthersAreBusyEndsThemAll) {
  constexpr int kCustomers = 3;
  Make(12);
  const std::vector<TensorId> tensors = world().RegisterMany(9, kPage);
  {
    auto queue = world().OpenQueue(kPage, 2);
    for (int i = 0; i < 9; ++i) world().Fill(*queue, tensors[i], i);
  }
  std::atomic<int> running = 0;
  std::vector<std::thread> customers;
  for (int c = 0; c < kCustomers; ++c) {
    auto queue = world().OpenQueue(kPage, 2);
    customers.emplace_back([&, c, queue = std::move(queue)]() mutable {
      absl::Status status;
      for (int i = 0; status.ok(); ++i) {
        // Its own three tensors, so that no other may hold it up.
        absl::StatusOr<Pin> pin =
            world().Take(*queue, tensors[c * 3 + i % 3], Access::kUpdate);
        status = pin.status();
        if (i == 0) ++running;
      }
      EXPECT_TRUE(absl::IsCancelled(status)) << status;
    });
  }
  ASSERT_TRUE(world().WaitUntil([&] { return running == kCustomers; }));
  absl::Status status = Close();
  for (std::thread& customer : customers) customer.join();
  EXPECT_TRUE(status.ok() || absl::IsFailedPrecondition(status)) << status;
  EXPECT_TRUE(Close().ok());
}

TEST_P(BusyCloseContract, ManyCallersOfCloseAllHearOfIt) {
  Make(4);
  const TensorId a = world().Register("a", kPage);
  {
    auto queue = world().OpenQueue(kPage, 2);
    world().Fill(*queue, a, 1);
  }
  std::vector<std::thread> callers;
  for (int i = 0; i < 4; ++i) {
    callers.emplace_back([&] {
      EXPECT_TRUE(Close().ok());
      EXPECT_EQ(stats().host.budget_bytes, 4 * kPlace);
    });
  }
  for (std::thread& caller : callers) caller.join();
}

}  // namespace
}  // namespace terrace
