// Queues for one tensor, whose room is the tensor's own: runtime.h.
#include <utility>
#include <vector>

#include "tests/contract/contract_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;

class OwnQueueContract : public ContractTest {
 protected:
  // By a queue of its own, which is closed again.
  absl::StatusOr<Pin> Take(TensorId tensor, Access access) {
    auto queue = runtime().OpenQueueFor(tensor, Soon());
    if (!queue.ok()) return queue.status();
    return world().Take(**queue, tensor, access);
  }
  // Pinned, with a pattern of `seed`.
  Pin Fill(TensorId tensor, uint8_t seed) {
    absl::StatusOr<Pin> pin = Take(tensor, Access::kOverwrite);
    EXPECT_TRUE(pin.ok()) << pin.status();
    if (!pin.ok()) return Pin();
    WritePattern(pin->data(), seed);
    return *std::move(pin);
  }
  // That the pins, which have all the room, are not: the tensor is refused
  // early, and had once there is one less.
  void ExpectNotWaitedFor(std::vector<Pin> pins, TensorId tensor) {
    const Time begun = world().Now();
    const absl::Duration patience = Soon() - begun;
    const absl::Status refused =
        runtime().OpenQueueFor(tensor, begun + patience).status();
    EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
    EXPECT_LT(world().Now(), begun + patience / 2);
    pins.pop_back();
    EXPECT_TRUE(Take(tensor, Access::kOverwrite).ok());
  }
};
INSTANTIATE_TEST_SUITE_P(Worlds, OwnQueueContract,
                         testing::ValuesIn(kAllWorlds), WorldParamName);

TEST_P(OwnQueueContract, TensorsOfAllSizesTakeNoMoreThanTheyAre) {
  Make(7);
  std::vector<TensorId> tensors;
  std::vector<Pin> pins;
  for (int pages = 1; pages <= 4; ++pages) {  // and a header's page each
    tensors.push_back(world().Register("of " + std::to_string(pages) + " pages",
                                       pages * kPage));
    pins.push_back(Fill(tensors.back(), static_cast<uint8_t>(pages)));
  }
  const Stats full = stats();
  EXPECT_EQ(full.host.used_bytes, 7 * kPlace);
  EXPECT_EQ(full.host.peak_bytes, 7 * kPlace);
  EXPECT_EQ(full.resident_bytes, 7 * kPlace);
  EXPECT_EQ(full.window_bytes, 0);
  EXPECT_EQ(full.evictions, 0);
  pins.clear();
  for (int pages = 4; pages >= 1; --pages) {
    auto pin = Take(tensors[static_cast<size_t>(pages) - 1], Access::kRead);
    ASSERT_TRUE(pin.ok()) << pin.status();
    EXPECT_TRUE(HasPattern(pin->data(), static_cast<uint8_t>(pages)));
  }
  // They stayed.
  EXPECT_EQ(stats().demand_reads, 0);
}

TEST_P(OwnQueueContract, WhatIsInMemoryNeedsNoRoomAtAll) {
  Make(3);
  const std::vector<TensorId> tensors = world().RegisterMany(3, kPage);
  const Pin first = Fill(tensors[0], 0);
  const Pin second = Fill(tensors[1], 1);
  Fill(tensors[2], 2).Release();
  // At once: nothing could leave.
  auto queue = runtime().OpenQueueFor(tensors[2], world().Now());
  ASSERT_TRUE(queue.ok()) << queue.status();
  auto pin = world().Take(**queue, tensors[2], Access::kUpdate);
  ASSERT_TRUE(pin.ok()) << pin.status();
  EXPECT_TRUE(HasPattern(pin->data(), 2));
  EXPECT_EQ(stats().bytes_written(), 0);
  EXPECT_EQ(stats().hits, 1);
}

TEST_P(OwnQueueContract, OthersLeaveForItAndComeBack) {
  Make(3);
  const std::vector<TensorId> tensors = world().RegisterMany(8, kPage);
  for (int i = 0; i < 8; ++i) {
    Fill(tensors[static_cast<size_t>(i)], static_cast<uint8_t>(i)).Release();
  }
  for (int i = 0; i < 8; ++i) {
    auto pin = Take(tensors[static_cast<size_t>(i)], Access::kRead);
    ASSERT_TRUE(pin.ok()) << pin.status();
    EXPECT_TRUE(HasPattern(pin->data(), static_cast<uint8_t>(i)));
  }
  EXPECT_EQ(stats().host.peak_bytes, 3 * kPlace);
  EXPECT_GE(stats().demand_reads, 5);
}

TEST_P(OwnQueueContract, WhatLeftSinceItsQueueWasOpenedIsAskedForAgain) {
  Make(2);
  const std::vector<TensorId> tensors = world().RegisterMany(1, kPage);
  Fill(tensors[0], 5).Release();
  auto queue = runtime().OpenQueueFor(tensors[0], Soon());
  ASSERT_TRUE(queue.ok()) << queue.status();
  auto all = world().OpenQueue(kPage, 2);
  ASSERT_NE(all, nullptr);
  const absl::Status left =
      world().Take(**queue, tensors[0], Access::kRead).status();
  EXPECT_TRUE(absl::IsAborted(left)) << left;
  EXPECT_THAT(Message(left), HasSubstr("has left memory since its queue"));
  all.reset();
  auto again = Take(tensors[0], Access::kRead);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(HasPattern(again->data(), 5));
}

TEST_P(OwnQueueContract, ATensorThatIsNoneIsRefused) {
  Make(2);
  const TensorId gone = world().Register("gone", kPage);
  ASSERT_TRUE(runtime().Unregister(gone).ok());
  for (const TensorId each : {gone, TensorId{99}, TensorId{}}) {
    EXPECT_TRUE(
        absl::IsInvalidArgument(runtime().OpenQueueFor(each, Soon()).status()));
  }
  EXPECT_EQ(stats().window_bytes, 0);
}

TEST_P(OwnQueueContract, NoPinIsWaitedFor) {
  Make(3);
  const std::vector<TensorId> tensors = world().RegisterMany(4, kPage);
  std::vector<Pin> pins;
  for (int i = 0; i < 3; ++i) {
    pins.push_back(Fill(tensors[static_cast<size_t>(i)], 1));
  }
  ExpectNotWaitedFor(std::move(pins), tensors[3]);
}

// Nor one in the window of a queue that is closed.
TEST_P(OwnQueueContract, NoPinInAClosedWindowIsWaitedFor) {
  Make(3);
  const std::vector<TensorId> tensors = world().RegisterMany(4, kPage);
  std::vector<Pin> pins;
  for (int i = 0; i < 3; ++i) {
    auto queue = world().OpenQueue(kPage, 1);
    ASSERT_NE(queue, nullptr);
    auto pin = world().Take(*queue, tensors[static_cast<size_t>(i)],
                            Access::kOverwrite);
    ASSERT_TRUE(pin.ok()) << pin.status();
    pins.push_back(*std::move(pin));
  }
  ExpectNotWaitedFor(std::move(pins), tensors[3]);
}

// Else pins of one customer would take the room that another counts on.
TEST_P(OwnQueueContract, OtherQueuesKeepToTheirWindows) {
  Make(6);
  const std::vector<TensorId> tensors = world().RegisterMany(6, kPage);
  Fill(tensors[0], 0).Release();
  auto others = world().OpenQueue(kPage, 2);
  ASSERT_NE(others, nullptr);
  std::vector<Pin> pins;
  for (const size_t i : {1, 2}) {
    auto pin = world().Take(*others, tensors[i], Access::kOverwrite);
    ASSERT_TRUE(pin.ok()) << pin.status();
    pins.push_back(*std::move(pin));
  }
  EXPECT_EQ(stats().host.used_bytes, 3 * kPlace);
  for (const size_t i : {0, 3, 4, 5}) {
    pins.push_back(Fill(tensors[i], static_cast<uint8_t>(i)));
  }
  EXPECT_EQ(stats().host.used_bytes, 6 * kPlace);
  EXPECT_EQ(stats().bytes_written(), 0);
}

class OwnQueueFailure : public OwnQueueContract {};
INSTANTIATE_TEST_SUITE_P(Worlds, OwnQueueFailure,
                         testing::ValuesIn(kDiskWorlds), WorldParamName);

TEST_P(OwnQueueFailure, AFailedWriteInAClosedWindowIsNotWaitedFor) {
  Make(2);
  const std::vector<TensorId> tensors = world().RegisterMany(3, kPage);
  world().faults().FailAll({.kind = FaultKind::kError, .error = ENOSPC},
                           CallFilter::kWrites);
  const Pin other = Fill(tensors[1], 2);
  // From here on what other queues have is in their windows.
  world().Fill(*world().OpenQueue(kPage, 1), tensors[0], 1);
  const Time begun = world().Now();
  const absl::Duration patience = Soon() - begun;
  const absl::Status refused =
      runtime().OpenQueueFor(tensors[2], begun + patience).status();
  EXPECT_TRUE(absl::IsResourceExhausted(refused)) << refused;
  EXPECT_THAT(Message(refused), HasSubstr("ENOSPC"));
  EXPECT_LT(world().Now(), begun + patience / 2);
  world().faults().Clear();
  EXPECT_TRUE(Take(tensors[2], Access::kOverwrite).ok());
  const auto pin = Take(tensors[0], Access::kRead);
  ASSERT_TRUE(pin.ok()) << pin.status();
  EXPECT_TRUE(HasPattern(pin->data(), 1));
}

}  // namespace
}  // namespace terrace
