// What a queue refuses on the customer's side, and what it posts.
#include "runtime/client/request_queue.h"

#include <cstddef>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/messages/ports.h"
#include "tests/support/manual_clock.h"

namespace terrace {
namespace {

using testing::HasSubstr;

// Tensors 0 and 1 fit its slots, tensor 2 does not.
class RequestQueueTest : public testing::Test {
 protected:
  RequestQueueTest() {
    const std::vector<TensorId> ids = {TensorId{0}, TensorId{1}, TensorId{2}};
    const std::vector<TensorSpec> specs = {{.name = "a", .size_bytes = 100},
                                           {.name = "b", .size_bytes = 1},
                                           {.name = "c", .size_bytes = 101}};
    intake_->OnRegistered(ids, specs);
    intake_->OnOpened(9, 100, 2);
    queue_ = Make({.data = memory_.data()});
  }

  std::unique_ptr<RequestQueue> Make(const TierBase& base) {
    return MakeRequestQueue(
        9, queue_port_, base,
        {.clock = &clock_, .inbox = inbox_, .intake = intake_, .port = port_});
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
  // A group that was granted a pin of tensor 1.
  void Grant(RequestQueue& queue, uint64_t token) {
    const Want wants[] = {{TensorId{1}}};
    ASSERT_TRUE(queue.Push(wants, 5, absl::InfiniteFuture()).ok());
    std::vector<ReadyGroup> ready(1);
    ready[0].tag = 5;
    ready[0].cause = WaitCause::kSpace;
    ready[0].grants = Grants{
        {.token = token, .tensor = TensorId{1}, .offset = 64, .size_bytes = 1}};
    queue_port_->Publish(&ready, false, 0, absl::OkStatus());
  }

  VirtualClock clock_;
  std::vector<std::byte> memory_ = std::vector<std::byte>(128);
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>([] {});
  Ports ports_{inbox_};
  const std::shared_ptr<Port> port_ = ports_.Open();
  const std::shared_ptr<Intake> intake_ =
      std::make_shared<Intake>(port_->client(), clock_, inbox_);
  const std::shared_ptr<QueueSink> sink_ = ports_.OpenQueue(port_->client(), 9);
  const std::shared_ptr<QueuePort> queue_port_ = port_->TakeQueue(9);
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
  std::vector<ReadyGroup> ready(1);
  ready[0].tag = 5;
  ready[0].grants = absl::DataLossError("gone");
  queue_port_->Publish(&ready, false, 1, absl::OkStatus());
  const absl::StatusOr<Ready> next = queue_->Next(absl::InfiniteFuture());
  EXPECT_EQ(next->tag, 5u);
  EXPECT_EQ(next->pins.status(), absl::DataLossError("gone"));
  EXPECT_TRUE(absl::IsFailedPrecondition(
      queue_->Next(absl::InfiniteFuture()).status()));
}

TEST_F(RequestQueueTest, WhatIsGrantedIsAPinWhereItsTierIs) {
  Grant(*queue_, 21);
  absl::StatusOr<Ready> ready = queue_->Next(absl::InfiniteFuture());
  ASSERT_TRUE(ready.ok() && ready->pins.ok());
  EXPECT_EQ(ready->cause, WaitCause::kSpace);
  ASSERT_EQ(ready->pins->size(), 1u);
  Pin& pin = ready->pins->front();
  EXPECT_EQ(pin.tensor(), TensorId{1});
  EXPECT_EQ(pin.data().data(), memory_.data() + 64);
  EXPECT_EQ(pin.data().size(), 1u);
  Posted<PushRequest>();
  pin.Discard();
  const auto ended = Posted<EndPinRequest>();
  EXPECT_EQ(ended.token, 21u);
  EXPECT_EQ(ended.end, PinEnd::kDiscard);
}

TEST_F(RequestQueueTest, OnADeviceAPinHasAnAddressAlone) {
  const std::unique_ptr<RequestQueue> there = Make({.address = 4096});
  Grant(*there, 22);
  const absl::StatusOr<Ready> ready = there->Next(absl::InfiniteFuture());
  ASSERT_TRUE(ready.ok() && ready->pins.ok());
  EXPECT_TRUE(ready->pins->front().data().empty());
  EXPECT_EQ(ready->pins->front().address(), 4096u + 64);
}

TEST_F(RequestQueueTest, AWakeEndsANextThatWaitsAndIsToldOfOnce) {
  const Want wants[] = {{TensorId{0}}};
  const auto live = MakeRequestQueue(9, queue_port_, {.data = memory_.data()},
                                     {.clock = &SystemClock(),
                                      .inbox = inbox_,
                                      .intake = intake_,
                                      .port = port_});
  ASSERT_TRUE(live->Push(wants, 1, absl::InfiniteFuture()).ok());
  std::thread waits([&] {
    EXPECT_TRUE(absl::IsAborted(live->Next(absl::InfiniteFuture()).status()));
  });
  live->Wake();  // before the wait or in it
  waits.join();
  ASSERT_TRUE(queue_->Push(wants, 1, absl::InfiniteFuture()).ok());
  queue_->Wake();
  queue_->Wake();
  EXPECT_TRUE(absl::IsAborted(queue_->Next(absl::InfiniteFuture()).status()));
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(queue_->Next(clock_.WallNow()).status()));
}

TEST_F(RequestQueueTest, WhatIsReadyGoesBeforeAWake) {
  Grant(*queue_, 21);
  const Want wants[] = {{TensorId{0}}};
  ASSERT_TRUE(queue_->Push(wants, 6, absl::InfiniteFuture()).ok());
  queue_->Wake();
  const absl::StatusOr<Ready> taken = queue_->Next(absl::InfiniteFuture());
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_EQ(taken->tag, 5u);
  EXPECT_TRUE(absl::IsAborted(queue_->Next(absl::InfiniteFuture()).status()));
}

TEST_F(RequestQueueTest, ItsEndClosesTheQueueAndItsPort) {
  queue_.reset();
  EXPECT_EQ(Posted<CloseQueueRequest>().queue, 9);
  EXPECT_TRUE(queue_port_->closed());
}

TEST_F(RequestQueueTest, AfterTheRuntimeNothingIsAsked) {
  inbox_->Shut();
  queue_port_->Close();
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
