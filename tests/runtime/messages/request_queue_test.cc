// What a queue refuses on the customer's side, and what it posts.
#include "runtime/messages/request_queue.h"

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/support/manual_clock.h"

namespace terrace {
namespace {

using testing::HasSubstr;

void SetOne(TensorSizes& sizes, TensorId id, int64_t size_bytes) {
  const TensorSpec spec = {.name = "a", .size_bytes = size_bytes};
  sizes.Set({&id, 1}, {&spec, 1});
}

TEST(TensorSizesTest, WhatIsNotRegisteredHasNone) {
  TensorSizes sizes;
  EXPECT_EQ(sizes.Get(TensorId{0}), -1);
  SetOne(sizes, TensorId{3}, 100);
  EXPECT_EQ(sizes.Get(TensorId{3}), 100);
  EXPECT_EQ(sizes.Get(TensorId{2}), -1);
  EXPECT_EQ(sizes.Get(TensorId{-1}), -1);
  sizes.Erase(TensorId{3});
  EXPECT_EQ(sizes.Get(TensorId{3}), -1);
}

// Two slots of 100 bytes; tensors 0 and 1 fit, tensor 2 does not.
class RequestQueueTest : public testing::Test {
 protected:
  RequestQueueTest() {
    SetOne(*sizes_, TensorId{0}, 100);
    SetOne(*sizes_, TensorId{1}, 1);
    SetOne(*sizes_, TensorId{2}, 101);
    queue_ = MakeRequestQueue({.id = 9, .port = port_}, 100, 2, clock_, inbox_,
                              sizes_);
  }

  void ExpectRefused(std::vector<int64_t> tensors, const std::string& why) {
    std::vector<Want> wants;
    for (const int64_t id : tensors) wants.push_back({TensorId{id}});
    const absl::Status status = queue_->Push(wants, 0, absl::InfiniteFuture());
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    EXPECT_EQ(inbox_->posted(), 0u);
  }
  template <typename Kind>
  Kind Posted() {
    std::deque<Message> messages;
    inbox_->Drain(&messages);
    return std::get<Kind>(std::get<Request>(messages.at(0)));
  }

  VirtualClock clock_;
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>([] {});
  const std::shared_ptr<TensorSizes> sizes_ = std::make_shared<TensorSizes>();
  const std::shared_ptr<QueuePort> port_ = std::make_shared<QueuePort>();
  std::unique_ptr<RequestQueue> queue_;
};

TEST_F(RequestQueueTest, WhatTheWindowCannotHoldIsRefusedAtOnce) {
  ExpectRefused({}, "a group of 0 tensors; the window has 2 slots");
  ExpectRefused({0, 1, 0}, "a group of 3 tensors");
  ExpectRefused({7}, "no tensor 7");
  ExpectRefused({2}, "tensor 2 has 101 bytes; a slot holds 100");
  ExpectRefused({1, 1}, "tensor 1 twice in one group");
}

TEST_F(RequestQueueTest, APushIsPostedWithItsDeadlineByTheRuntimesClock) {
  clock_.SetWall(absl::Hours(1));
  const Want wants[] = {{TensorId{1}, Access::kUpdate}};
  ASSERT_TRUE(
      queue_->Push(wants, 77, clock_.WallNow() + absl::Seconds(5)).ok());
  const auto posted = Posted<PushRequest>();
  EXPECT_EQ(posted.queue, 9);
  EXPECT_EQ(posted.tag, 77u);
  EXPECT_EQ(posted.deadline, clock_.Now() + absl::Seconds(5));
  ASSERT_EQ(posted.wants.size(), 1u);
  EXPECT_EQ(posted.wants[0].tensor, TensorId{1});
  EXPECT_EQ(posted.wants[0].access, Access::kUpdate);
}

TEST_F(RequestQueueTest, NextNeedsSomethingPushed) {
  EXPECT_TRUE(absl::IsFailedPrecondition(
      queue_->Next(absl::InfiniteFuture()).status()));
  const Want wants[] = {{TensorId{1}}};
  ASSERT_TRUE(queue_->Push(wants, 5, absl::InfiniteFuture()).ok());
  EXPECT_TRUE(absl::IsDeadlineExceeded(queue_->Next(clock_.Now()).status()));
  std::vector<Ready> ready(1);
  ready[0].tag = 5;
  port_->Publish(&ready, false, 1);
  EXPECT_EQ(queue_->Next(absl::InfiniteFuture())->tag, 5u);
  EXPECT_TRUE(absl::IsFailedPrecondition(
      queue_->Next(absl::InfiniteFuture()).status()));
}

TEST_F(RequestQueueTest, ItsEndClosesTheQueueAndItsPort) {
  queue_.reset();
  EXPECT_EQ(Posted<CloseQueueRequest>().queue, 9);
  EXPECT_TRUE(port_->closed());
}

TEST_F(RequestQueueTest, AfterTheRuntimeNothingIsAsked) {
  inbox_->Shut();
  port_->Close();
  const Want wants[] = {{TensorId{1}}};
  EXPECT_TRUE(
      absl::IsCancelled(queue_->Push(wants, 0, absl::InfiniteFuture())));
  EXPECT_TRUE(absl::IsCancelled(queue_->Next(absl::InfiniteFuture()).status()));
  EXPECT_TRUE(absl::IsCancelled(queue_->BeginStep(1)));
  EXPECT_TRUE(absl::IsCancelled(queue_->CommitStep({1})));
  EXPECT_TRUE(absl::IsCancelled(queue_->AbortStep()));
}

}  // namespace
}  // namespace terrace
