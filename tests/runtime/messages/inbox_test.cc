#include "runtime/messages/inbox.h"

#include <array>
#include <atomic>
#include <thread>
#include <utility>

#include "gtest/gtest.h"
#include "tests/support/own_child.h"

namespace terrace {
namespace {

// Records how pins end.
class PinLog final : public PinOwner {
 public:
  void EndPin(uint64_t token, PinEnd end) override {
    ended.emplace_back(token, end);
  }
  std::vector<std::pair<uint64_t, PinEnd>> ended;
};

Ready MakeReady(uint64_t tag, const std::shared_ptr<PinLog>& log) {
  Ready ready;
  ready.tag = tag;
  std::vector<Pin> pins;
  pins.emplace_back(log, tag, TensorId{0}, absl::Span<std::byte>());
  ready.pins = std::move(pins);
  return ready;
}

void Publish(QueuePort& port, Ready ready) {
  std::vector<Ready> list;
  list.push_back(std::move(ready));
  port.Publish(&list, false, 0);
  EXPECT_TRUE(list.empty());
}

absl::Time Late() { return SystemClock().Now() + absl::Seconds(30); }

uint64_t TokenOf(const Message& message) {
  return std::get<EndPinRequest>(std::get<Request>(message)).token;
}

TEST(Reply, TheFirstAnswerCounts) {
  Reply<int> reply;
  std::thread asker([&] { EXPECT_EQ(reply.Await(SystemClock()), 1); });
  reply.Set(1);
  asker.join();
  Reply<int> twice;
  twice.Set(2);
  twice.Set(3);
  EXPECT_EQ(twice.Await(SystemClock()), 2);
}

TEST(Inbox, MessagesComeInOrderAndAreNumberedFromOne) {
  Inbox inbox([] {});
  std::deque<Message> drained;
  EXPECT_EQ(inbox.Drain(&drained), 0u);
  for (uint64_t i = 0; i < 10; ++i) inbox.EndPin(i, PinEnd::kPublish);
  EXPECT_EQ(inbox.posted(), 10u);
  EXPECT_EQ(inbox.Drain(&drained), 10u);
  ASSERT_EQ(drained.size(), 10u);
  for (uint64_t i = 0; i < 10; ++i) EXPECT_EQ(TokenOf(drained[i]), i);
  drained.clear();
  EXPECT_TRUE(inbox.Post(EndPinRequest{10, PinEnd::kDiscard}));
  EXPECT_EQ(inbox.Drain(&drained), 11u);
  EXPECT_EQ(drained.size(), 1u);
}

TEST(Inbox, WakesForTheFirstMessageInAnEmptyBoxOnly) {
  int wakes = 0;
  Inbox inbox([&] { ++wakes; });
  inbox.Post(EndPinRequest{});
  inbox.Post(EndPinRequest{});
  EXPECT_EQ(wakes, 1);
  std::deque<Message> drained;
  inbox.Drain(&drained);
  inbox.Post(EndPinRequest{});
  EXPECT_EQ(wakes, 2);
}

TEST(Inbox, ShutReturnsWhatIsOwedAndRefusesTheRest) {
  int wakes = 0;
  Inbox inbox([&] { ++wakes; });
  inbox.Post(EndPinRequest{7, PinEnd::kPublish});
  const std::deque<Message> left = inbox.Shut();
  ASSERT_EQ(left.size(), 1u);
  EXPECT_EQ(TokenOf(left[0]), 7u);
  EXPECT_FALSE(inbox.Post(EndPinRequest{}));
  inbox.EndPin(1, PinEnd::kPublish);  // a pin that outlived its mover
  EXPECT_EQ(wakes, 1);
  EXPECT_TRUE(absl::IsCancelled(inbox.Closed()));
  std::deque<Message> drained;
  inbox.Drain(&drained);
  EXPECT_TRUE(drained.empty());
}

TEST(Inbox, ManyPostersLoseNothingAndKeepTheirOrder) {
  constexpr uint64_t kPosters = 4;
  constexpr uint64_t kEach = 2000;
  std::atomic<int> wakes = 0;
  Inbox inbox([&] { ++wakes; });
  std::vector<std::thread> posters;
  for (uint64_t p = 0; p < kPosters; ++p) {
    posters.emplace_back([&, p] {
      for (uint64_t i = 0; i < kEach; ++i) {
        inbox.EndPin(p * kEach + i, PinEnd::kPublish);
      }
    });
  }
  std::array<uint64_t, kPosters> next = {};
  uint64_t count = 0;
  uint64_t processed = 0;
  std::deque<Message> drained;
  while (count < kPosters * kEach) {
    processed = inbox.Drain(&drained);
    count += drained.size();
    EXPECT_EQ(processed, count);
    for (const Message& message : drained) {
      const uint64_t token = TokenOf(message);
      EXPECT_EQ(token % kEach, next[token / kEach]++);
    }
    drained.clear();
  }
  for (std::thread& poster : posters) poster.join();
  EXPECT_GE(wakes, 1);
}

TEST(Inbox, AForkedChildIsRefused) {
  int wakes = 0;
  Inbox inbox([&] { ++wakes; });
  EXPECT_TRUE(InChild([&] {
    return !inbox.IsOwnProcess() && !inbox.Post(EndPinRequest{}) &&
           wakes == 0 && absl::IsCancelled(inbox.Closed());
  }));
  EXPECT_TRUE(inbox.IsOwnProcess());
  EXPECT_TRUE(inbox.Post(EndPinRequest{}));
}

TEST(QueuePort, WhatIsReadyComesInOrder) {
  auto log = std::make_shared<PinLog>();
  QueuePort port;
  Publish(port, MakeReady(1, log));
  Publish(port, MakeReady(2, log));
  for (const uint64_t tag : {1, 2}) {
    absl::StatusOr<Ready> ready = port.Take(SystemClock(), 0, Late());
    ASSERT_TRUE(ready.ok());
    EXPECT_EQ(ready->tag, tag);
    ready->pins->front().Discard();
  }
  ASSERT_EQ(log->ended.size(), 2u);
  EXPECT_EQ(log->ended[0], std::pair(uint64_t{1}, PinEnd::kDiscard));
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      port.Take(SystemClock(), 0, SystemClock().Now()).status()));
}

TEST(QueuePort, BlockedByItsOwnPinsCountsOnlyAsOfTheLastMessage) {
  QueuePort port;
  std::vector<Ready> none;
  port.Publish(&none, /*blocked_by_own_pins=*/true, /*processed=*/5);
  // A sixth message is under way: it may be the release that helps.
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      port.Take(SystemClock(), 6, SystemClock().Now()).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(
      port.Take(SystemClock(), 5, absl::InfiniteFuture()).status()));
  port.Publish(&none, true, 6);
  EXPECT_TRUE(absl::IsFailedPrecondition(
      port.Take(SystemClock(), 6, absl::InfiniteFuture()).status()));
}

TEST(QueuePort, ReadyComesBeforeBlocked) {
  auto log = std::make_shared<PinLog>();
  QueuePort port;
  std::vector<Ready> list;
  list.push_back(MakeReady(1, log));
  port.Publish(&list, true, 9);
  EXPECT_TRUE(port.Take(SystemClock(), 0, Late()).ok());
}

TEST(QueuePort, CloseEndsUntakenPinsUnchangedNowAndLater) {
  auto log = std::make_shared<PinLog>();
  QueuePort port;
  Publish(port, MakeReady(1, log));
  EXPECT_FALSE(port.closed());
  port.Close();
  EXPECT_TRUE(port.closed());
  Publish(port, MakeReady(2, log));
  ASSERT_EQ(log->ended.size(), 2u);
  EXPECT_EQ(log->ended[0], std::pair(uint64_t{1}, PinEnd::kUnchanged));
  EXPECT_EQ(log->ended[1], std::pair(uint64_t{2}, PinEnd::kUnchanged));
  EXPECT_TRUE(absl::IsCancelled(
      port.Take(SystemClock(), 0, absl::InfiniteFuture()).status()));
}

TEST(QueuePort, AWaitingTakeHearsOfWhatIsReadyAndOfTheEnd) {
  auto log = std::make_shared<PinLog>();
  QueuePort port;
  std::atomic<bool> has_one = false;
  std::thread customer([&] {
    EXPECT_TRUE(port.Take(SystemClock(), 0, Late()).ok());
    has_one = true;
    EXPECT_TRUE(absl::IsCancelled(
        port.Take(SystemClock(), 0, absl::InfiniteFuture()).status()));
  });
  Publish(port, MakeReady(1, log));
  while (!has_one) std::this_thread::yield();
  port.Close();
  customer.join();
}

}  // namespace
}  // namespace terrace
