#include "runtime/messages/inbox.h"

#include <array>
#include <atomic>
#include <thread>
#include <utility>

#include "gtest/gtest.h"
#include "tests/support/own_child.h"

namespace terrace {
namespace {

uint64_t TokenOf(const Message& message) {
  return std::get<EndPinRequest>(std::get<Request>(message)).token;
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

}  // namespace
}  // namespace terrace
