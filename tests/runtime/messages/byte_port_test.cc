#include "runtime/messages/byte_port.h"

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
using testing::IsEmpty;

class BytePortTest : public testing::Test {
 protected:
  static absl::Time Now() { return SystemClock().Now(); }
  static absl::Time Late() { return Now() + absl::Seconds(30); }
  // An answer with one pin; its token is 100 more than the request's number.
  void Publish(std::vector<uint64_t> requests, std::vector<uint64_t> recalls) {
    std::vector<ReadyGroup> ready;
    for (const uint64_t request : requests) {
      ReadyGroup& group = ready.emplace_back();
      group.tag = request;
      group.grants = Grants{{.token = 100 + request, .tensor = TensorId{0}}};
    }
    port_.Publish(&ready, &recalls);
    EXPECT_TRUE(ready.empty());
    EXPECT_TRUE(recalls.empty());
  }

  const std::shared_ptr<PinLog> log_ = std::make_shared<PinLog>();
  BytePort port_{log_};
};

TEST_F(BytePortTest, EachRequestHasItsOwnAnswerInAnyOrder) {
  const uint64_t first = port_.AddRequest();
  const uint64_t second = port_.AddRequest();
  Publish({second, first}, {});
  for (const uint64_t request : {first, second}) {
    const auto news = port_.Take(SystemClock(), request, Late());
    ASSERT_TRUE(news.ok() && news->group.has_value());
    EXPECT_EQ(news->group->grants->front().token, 100 + request);
    EXPECT_TRUE(absl::IsInvalidArgument(
        port_.Take(SystemClock(), request, Late()).status()));
  }
  EXPECT_TRUE(log_->ended.empty());
}

TEST_F(BytePortTest, WhatIsNotReadyInTimeStays) {
  const uint64_t request = port_.AddRequest();
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      port_.Take(SystemClock(), request, Now()).status()));
  Publish({request}, {});
  EXPECT_TRUE(port_.Take(SystemClock(), request, Now()).ok());
}

TEST_F(BytePortTest, ARecallOfAnAnswerThatWasNotTakenComesWithIt) {
  const uint64_t first = port_.AddRequest();
  const uint64_t second = port_.AddRequest();
  Publish({first, second}, {});
  Publish({}, {100 + second});
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      port_.TakeRecalls(SystemClock(), Now()).status()));
  EXPECT_THAT(port_.Take(SystemClock(), first, Late())->recalls, IsEmpty());
  EXPECT_THAT(port_.Take(SystemClock(), second, Late())->recalls,
              ElementsAre(100 + second));
}

TEST_F(BytePortTest, RecallsThatAnAnswerBringsComeWithItAlone) {
  const uint64_t held = port_.AddRequest();
  const uint64_t ended = port_.AddRequest();
  Publish({held, ended}, {});
  for (const uint64_t each : {held, ended}) {
    ASSERT_TRUE(port_.Take(SystemClock(), each, Late()).ok());
  }
  const uint64_t request = port_.AddRequest();
  std::vector<ReadyGroup> answer(1);
  answer[0].tag = request;
  answer[0].grants = Grants{{.token = 7, .tensor = TensorId{0}}};
  answer[0].recalls = {100 + held, 100 + ended, 7};
  std::vector<uint64_t> recalls;
  port_.Publish(&answer, &recalls);
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      port_.TakeRecalls(SystemClock(), Now()).status()));
  port_.EndPin(100 + ended, PinEnd::kUnchanged);
  EXPECT_THAT(port_.Take(SystemClock(), request, Late())->recalls,
              ElementsAre(100 + held, 7));
  // One of an answer that was not taken comes with that.
  const uint64_t before = port_.AddRequest();
  const uint64_t after = port_.AddRequest();
  Publish({before}, {});
  answer.resize(1);
  answer[0].tag = after;
  answer[0].grants = Grants{{.token = 8, .tensor = TensorId{0}}};
  answer[0].recalls = {100 + before};
  port_.Publish(&answer, &recalls);
  EXPECT_THAT(port_.Take(SystemClock(), after, Late())->recalls, IsEmpty());
  EXPECT_THAT(port_.Take(SystemClock(), before, Late())->recalls,
              ElementsAre(100 + before));
  // Where nobody waits for the answer, as other recalls.
  answer.resize(1);
  answer[0].tag = 99;
  answer[0].recalls = {100 + held};
  port_.Publish(&answer, &recalls);
  EXPECT_THAT(*port_.TakeRecalls(SystemClock(), Late()),
              ElementsAre(100 + held));
}

TEST_F(BytePortTest, ARecallOfAPinThatHasEndedDoesNotCome) {
  const uint64_t request = port_.AddRequest();
  Publish({request}, {});
  ASSERT_TRUE(port_.Take(SystemClock(), request, Late()).ok());
  Publish({}, {100 + request, 77});
  port_.EndPin(100 + request, PinEnd::kUnchanged);
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      port_.TakeRecalls(SystemClock(), Now()).status()));
  Publish({}, {100 + request});
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      port_.TakeRecalls(SystemClock(), Now()).status()));
  EXPECT_EQ(log_->ended.size(), 1u);
}

TEST_F(BytePortTest, AThreadThatWaitsTakesTheRecallsAndOneWhereNoneDoes) {
  const uint64_t held = port_.AddRequest();
  Publish({held}, {});
  ASSERT_TRUE(port_.Take(SystemClock(), held, Late()).ok());
  Publish({}, {100 + held});
  EXPECT_THAT(*port_.TakeRecalls(SystemClock(), Late()),
              ElementsAre(100 + held));
  const uint64_t waiting = port_.AddRequest();
  std::atomic<bool> answered = false;
  std::thread thread([&] {
    const auto news = port_.Take(SystemClock(), waiting, Late());
    EXPECT_FALSE(news->group.has_value());
    EXPECT_THAT(news->recalls, ElementsAre(100 + held));
    answered = true;
  });
  Publish({}, {100 + held});
  thread.join();
  EXPECT_TRUE(answered);
}

TEST_F(BytePortTest, AnAnswerThatNobodyWaitsForEndsItsPins) {
  const uint64_t request = port_.AddRequest();
  port_.DropRequest(request);
  Publish({request}, {});
  EXPECT_THAT(log_->ended,
              ElementsAre(std::make_pair(100 + request, PinEnd::kUnchanged)));
}

TEST_F(BytePortTest, ASecondAnswerToARequestEndsItsPins) {
  const uint64_t request = port_.AddRequest();
  Publish({request}, {});
  std::vector<ReadyGroup> second(1);
  second[0].tag = request;
  second[0].grants = Grants{{.token = 7, .tensor = TensorId{0}}};
  std::vector<uint64_t> recalls;
  port_.Publish(&second, &recalls);
  EXPECT_THAT(log_->ended,
              ElementsAre(std::make_pair(uint64_t{7}, PinEnd::kUnchanged)));
  const auto news = port_.Take(SystemClock(), request, Late());
  ASSERT_TRUE(news.ok() && news->group.has_value());
  EXPECT_EQ(news->group->grants->front().token, 100 + request);
}

TEST_F(BytePortTest, CloseEndsWhatWasNotTakenAndAllWaits) {
  const uint64_t taken = port_.AddRequest();
  const uint64_t untaken = port_.AddRequest();
  const uint64_t waits = port_.AddRequest();
  Publish({taken, untaken}, {});
  ASSERT_TRUE(port_.Take(SystemClock(), taken, Late()).ok());
  std::thread waiter([&] {
    EXPECT_TRUE(absl::IsCancelled(
        port_.Take(SystemClock(), waits, absl::InfiniteFuture()).status()));
  });
  std::thread recalls([&] {
    EXPECT_TRUE(absl::IsCancelled(
        port_.TakeRecalls(SystemClock(), absl::InfiniteFuture()).status()));
  });
  port_.Close();
  waiter.join();
  recalls.join();
  Publish({waits}, {});
  EXPECT_THAT(log_->ended,
              ElementsAre(std::make_pair(100 + untaken, PinEnd::kUnchanged),
                          std::make_pair(100 + waits, PinEnd::kUnchanged)));
  port_.EndPin(100 + taken, PinEnd::kPublish);  // it was valid until now
  EXPECT_EQ(log_->ended.size(), 3u);
}

TEST_F(BytePortTest, AWakeEndsOneWaitForRecalls) {
  port_.WakeRecalls();
  EXPECT_TRUE(
      absl::IsAborted(port_.TakeRecalls(SystemClock(), Late()).status()));
  EXPECT_TRUE(absl::IsDeadlineExceeded(
      port_.TakeRecalls(SystemClock(), Now()).status()));
}

}  // namespace
}  // namespace terrace
