#include "runtime/messages/queue_port.h"

#include <atomic>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/messages/pin_log.h"

namespace terrace {
namespace {

using testing::ElementsAre;

ReadyGroup MakeReady(uint64_t tag) {
  ReadyGroup ready;
  ready.tag = tag;
  ready.grants = Grants{{.token = tag, .tensor = TensorId{0}}};
  return ready;
}

void Publish(QueuePort& port, ReadyGroup ready) {
  std::vector<ReadyGroup> list;
  list.push_back(std::move(ready));
  port.Publish(&list, false, 0, absl::OkStatus());
  EXPECT_TRUE(list.empty());
}

absl::Time Late() { return SystemClock().Now() + absl::Seconds(30); }

class QueuePortTest : public testing::Test {
 protected:
  const std::shared_ptr<PinLog> log_ = std::make_shared<PinLog>();
  QueuePort port_{log_};
};

TEST_F(QueuePortTest, WhatIsReadyComesInOrder) {
  Publish(port_, MakeReady(1));
  Publish(port_, MakeReady(2));
  for (const uint64_t tag : {1, 2}) {
    const absl::StatusOr<ReadyGroup> ready =
        port_.Take(SystemClock(), 0, Late());
    ASSERT_TRUE(ready.ok());
    EXPECT_EQ(ready->tag, tag);
    EXPECT_EQ(ready->grants->front().token, tag);
  }
  EXPECT_TRUE(log_->ended.empty());
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      port_.Take(SystemClock(), 0, SystemClock().Now()).status()));
}

TEST_F(QueuePortTest, BlockedByItsOwnPinsCountsOnlyAsOfTheLastMessage) {
  std::vector<ReadyGroup> none;
  port_.Publish(&none, /*blocked_by_own_pins=*/true, /*processed=*/5,
                absl::OkStatus());
  // A sixth message is under way: it may be the release that helps.
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      port_.Take(SystemClock(), 6, SystemClock().Now()).status()));
  EXPECT_TRUE(absl::IsFailedPrecondition(
      port_.Take(SystemClock(), 5, absl::InfiniteFuture()).status()));
  port_.Publish(&none, true, 6, absl::OkStatus());
  EXPECT_TRUE(absl::IsFailedPrecondition(
      port_.Take(SystemClock(), 6, absl::InfiniteFuture()).status()));
}

TEST_F(QueuePortTest, ReadyComesBeforeBlocked) {
  std::vector<ReadyGroup> list;
  list.push_back(MakeReady(1));
  port_.Publish(&list, true, 9, absl::OkStatus());
  EXPECT_TRUE(port_.Take(SystemClock(), 0, Late()).ok());
}

TEST_F(QueuePortTest, CloseEndsUntakenPinsUnchangedNowAndLater) {
  Publish(port_, MakeReady(1));
  ReadyGroup failed;
  failed.grants = absl::DataLossError("gone");
  Publish(port_, std::move(failed));  // nothing ends with it
  EXPECT_FALSE(port_.closed());
  port_.Close();
  EXPECT_TRUE(port_.closed());
  Publish(port_, MakeReady(2));
  EXPECT_THAT(log_->ended,
              ElementsAre(std::pair(uint64_t{1}, PinEnd::kUnchanged),
                          std::pair(uint64_t{2}, PinEnd::kUnchanged)));
  EXPECT_TRUE(absl::IsCancelled(
      port_.Take(SystemClock(), 0, absl::InfiniteFuture()).status()));
}

TEST_F(QueuePortTest, AWaitingTakeHearsOfWhatIsReadyAndOfTheEnd) {
  std::atomic<bool> has_one = false;
  std::thread customer([&] {
    EXPECT_TRUE(port_.Take(SystemClock(), 0, Late()).ok());
    has_one = true;
    EXPECT_TRUE(absl::IsCancelled(
        port_.Take(SystemClock(), 0, absl::InfiniteFuture()).status()));
  });
  Publish(port_, MakeReady(1));
  while (!has_one) std::this_thread::yield();
  port_.Close();
  customer.join();
}

}  // namespace
}  // namespace terrace
