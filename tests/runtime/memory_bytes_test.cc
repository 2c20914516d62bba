// terrace/byte_queue.h where everything stays in memory.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/byte_queue.h"
#include "terrace/memory_runtime.h"
#include "terrace/recall_thread.h"
#include "tests/support/own_child.h"

namespace terrace {
namespace {

using testing::ElementsAre;

Time Late() { return absl::Now() + absl::Seconds(60); }

class MemoryBytesTest : public testing::Test {
 protected:
  void SetUp() override {
    auto threads = ThreadPool::Create(1);
    ASSERT_TRUE(threads.ok());
    runtime_ = MemoryRuntime::Create(*threads);
    ASSERT_TRUE(runtime_->Reserve(1 << 20).ok());
    queue_ = Open();
    other_ = Open();
    a_ = *runtime_->Register({.name = "a", .size_bytes = 100});
    b_ = *runtime_->Register({.name = "b", .size_bytes = 50'000});
    for (const TensorId id : {a_, b_}) {
      const Pin pin = Have(*queue_, id, Access::kOverwrite);
      std::fill(pin.data().begin(), pin.data().end(), std::byte{1});
    }
  }
  std::unique_ptr<ByteQueue> Open() {
    auto queue = runtime_->OpenBytes(4096);
    EXPECT_TRUE(queue.ok()) << queue.status();
    return *std::move(queue);
  }
  static uint64_t Push(ByteQueue& queue, std::vector<Want> wants,
                       Time deadline) {
    const auto request = queue.Push(wants, {}, deadline);
    EXPECT_TRUE(request.ok()) << request.status();
    return request.value_or(0);
  }
  // What is asked back of that queue meanwhile stays as it is.
  static Pin Have(ByteQueue& queue, TensorId tensor, Access access) {
    const uint64_t request = Push(queue, {{tensor, access}}, Late());
    auto news = queue.Await(request, Late());
    while (news.ok() && !news->pins.has_value()) {
      news = queue.Await(request, Late());
    }
    EXPECT_TRUE(news.ok() && news->pins->ok());
    return std::move((*news->pins)->front());
  }

  std::unique_ptr<MemoryRuntime> runtime_;
  std::unique_ptr<ByteQueue> queue_;
  std::unique_ptr<ByteQueue> other_;
  TensorId a_;
  TensorId b_;
};

TEST_F(MemoryBytesTest, ReadersAreTogetherAndNothingIsRecalled) {
  const Pin one = Have(*queue_, a_, Access::kRead);
  const Pin two = Have(*other_, a_, Access::kRead);
  EXPECT_EQ(one.data().data(), two.data().data());
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(queue_->AwaitRecalls(absl::Now()).status()));
}

TEST_F(MemoryBytesTest, AnothersAccessRecallsThePinOnce) {
  Pin pin = Have(*queue_, a_, Access::kUpdate);
  const uint64_t request = Push(*other_, {{b_}, {a_}}, Late());
  std::thread waiter([&] {
    auto news = other_->Await(request, Late());
    ASSERT_TRUE(news.ok() && news->pins.has_value() && news->pins->ok());
    EXPECT_EQ((**news->pins)[1].data()[0], std::byte{9});
  });
  EXPECT_THAT(*queue_->AwaitRecalls(Late()), ElementsAre(pin.token()));
  EXPECT_TRUE(
      absl::IsDeadlineExceeded(queue_->AwaitRecalls(absl::Now()).status()));
  pin.data()[0] = std::byte{9};
  pin.Release();
  waiter.join();
  EXPECT_EQ(runtime_->GetStats().bytes.recalls, 1);
}

TEST_F(MemoryBytesTest, AThreadThatWaitsTakesTheRecall) {
  Pin held = Have(*queue_, a_, Access::kRead);
  const Pin blocks = Have(*other_, b_, Access::kUpdate);
  const uint64_t waits = Push(*queue_, {{b_}}, Late());
  std::thread writer([&] {
    Have(*other_, a_, Access::kUpdate);  // once it is given back
  });
  auto news = queue_->Await(waits, Late());
  ASSERT_TRUE(news.ok()) << news.status();
  EXPECT_FALSE(news->pins.has_value());
  EXPECT_THAT(news->recalls, ElementsAre(held.token()));
  held.ReleaseUnchanged();
  writer.join();
}

TEST_F(MemoryBytesTest, WhatIsNotGivenBackIsNamedAtTheDeadline) {
  const Pin pin = Have(*queue_, a_, Access::kUpdate);
  auto news = other_->Await(
      Push(*other_, {{a_}}, absl::Now() + absl::Milliseconds(20)), Late());
  ASSERT_TRUE(news.ok() && news->pins.has_value());
  EXPECT_TRUE(absl::IsResourceExhausted(news->pins->status()));
  EXPECT_THAT(std::string(news->pins->status().message()),
              testing::HasSubstr("'a'"));
}

TEST_F(MemoryBytesTest, WrongRequestsAreRefused) {
  EXPECT_TRUE(absl::IsInvalidArgument(queue_->Await(77, Late()).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(queue_->Push({}, {}, Late()).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(runtime_->OpenBytes(0).status()));
  EXPECT_TRUE(
      absl::IsInvalidArgument(runtime_->OpenBytes(1, "hbm:0").status()));
  EXPECT_TRUE(queue_->BeginStep(1).ok());
  EXPECT_TRUE(absl::IsFailedPrecondition(queue_->BeginStep(2)));
  EXPECT_TRUE(queue_->CommitStep({1}).ok());
}

TEST_F(MemoryBytesTest, CloseCancelsAndNamesWhatIsHeld) {
  Pin pin = Have(*queue_, a_, Access::kRead);
  EXPECT_TRUE(absl::IsFailedPrecondition(runtime_->Close(Late())));
  EXPECT_TRUE(absl::IsCancelled(queue_->AwaitRecalls(Late()).status()));
  EXPECT_TRUE(absl::IsCancelled(runtime_->OpenBytes(1).status()));
  queue_.reset();
  other_.reset();
  EXPECT_EQ(pin.data()[0], std::byte{1});
  pin.ReleaseUnchanged();
  EXPECT_TRUE(runtime_->Close(Late()).ok());
}

TEST_F(MemoryBytesTest, ARecallThreadAnswersUntilItEnds) {
  std::atomic<uint64_t> answered = 0;
  Pin pin = Have(*queue_, a_, Access::kRead);
  auto thread = RecallThread::Start(*queue_, [&](uint64_t token) {
    answered = token;
    pin.ReleaseUnchanged();
  });
  ASSERT_TRUE(thread.ok());
  Have(*other_, a_, Access::kUpdate);
  EXPECT_EQ(answered, pin.token());
  thread->reset();
}

TEST_F(MemoryBytesTest, AForkedChildHasNothingOfIt) {
  EXPECT_TRUE(InChild([&] {
    const bool cancelled =
        absl::IsCancelled(queue_->Push({}, {}, Late()).status()) &&
        absl::IsCancelled(queue_->Await(1, Late()).status()) &&
        absl::IsCancelled(queue_->AwaitRecalls(Late()).status()) &&
        absl::IsCancelled(queue_->BeginWaiting({})) &&
        absl::IsCancelled(queue_->HoldAtMost(1)) &&
        absl::IsCancelled(runtime_->OpenBytes(1).status());
    queue_.reset();
    return cancelled;
  }));
}

}  // namespace
}  // namespace terrace
