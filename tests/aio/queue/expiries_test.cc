// When a transfer is looked at, and what its lateness counts from.
#include "aio/queue/expiries.h"

#include "gtest/gtest.h"

namespace terrace {
namespace {

const absl::Time kStart = absl::FromUnixSeconds(1000);
constexpr absl::Duration kTimeout = absl::Milliseconds(80);

Transfer At(absl::Time enqueued, uint64_t tag,
            absl::Duration timeout = kTimeout) {
  Transfer transfer;
  transfer.enqueued = enqueued;
  transfer.request.tag = tag;
  transfer.request.timeout = timeout;
  return transfer;
}

TEST(Expiries, AreTakenOneByOneInTheirOrder) {
  Expiries expiries;
  Transfer second = At(kStart + absl::Milliseconds(1), 1);
  Transfer first = At(kStart, 2);
  expiries.Add(second);
  expiries.Add(first);
  EXPECT_EQ(expiries.TakeDue(kStart + absl::Milliseconds(79)), nullptr);
  const absl::Time late = kStart + kTimeout + absl::Milliseconds(1);
  EXPECT_EQ(expiries.TakeDue(late), &first);
  EXPECT_EQ(expiries.TakeDue(late), &second);
  EXPECT_EQ(expiries.TakeDue(late), nullptr);
}

TEST(Expiries, WhatWasAnsweredMeanwhileIsLookedAtLater) {
  Expiries expiries;
  Transfer transfer = At(kStart, 1);
  expiries.Add(transfer);
  ASSERT_EQ(expiries.TakeDue(kStart + kTimeout), &transfer);
  const absl::Time answered = kStart + absl::Milliseconds(50);
  const absl::Time expiry = expiries.ExpiryOf(transfer, answered);
  EXPECT_EQ(expiry, answered + kTimeout);
  expiries.LookAt(expiry, transfer);
  EXPECT_EQ(expiries.TakeDue(expiry - absl::Nanoseconds(1)), nullptr);
  EXPECT_EQ(expiries.TakeDue(expiry), &transfer);
}

TEST(Expiries, AnInfiniteTimeoutIsNeverDue) {
  Expiries expiries;
  Transfer transfer = At(kStart, 1, absl::InfiniteDuration());
  expiries.Add(transfer);
  EXPECT_EQ(expiries.NextEvent(), absl::InfiniteFuture());
  EXPECT_EQ(expiries.TakeDue(kStart + absl::Hours(1000)), nullptr);
  expiries.Remove(transfer);
}

TEST(Expiries, WhatEndedIsNotLookedAt) {
  Expiries expiries;
  Transfer transfer = At(kStart, 1);
  expiries.Add(transfer);
  expiries.Remove(transfer);
  EXPECT_EQ(expiries.NextEvent(), absl::InfiniteFuture());
}

TEST(Expiries, LooksAreDueOftenWhileAnythingIsAwaited) {
  Expiries expiries;
  Transfer transfer = At(kStart, 1);
  expiries.Add(transfer);
  EXPECT_EQ(expiries.NextEvent(), kStart + kTimeout / 8);
}

TEST(Expiries, TimeInWhichNobodyLookedIsNotCounted) {
  Expiries expiries;
  Transfer transfer = At(kStart, 1);
  expiries.Add(transfer);
  const absl::Time woken = kStart + absl::Seconds(5);
  expiries.Look(woken);
  EXPECT_EQ(expiries.ExpiryOf(transfer, kStart), woken + kTimeout);
}

}  // namespace
}  // namespace terrace
