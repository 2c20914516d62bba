#include "runtime/messages/port.h"

#include <memory>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "runtime/messages/ports.h"
#include "tests/runtime/messages/pin_log.h"

namespace terrace {
namespace {

using testing::ElementsAre;

class PortsTest : public testing::Test {
 protected:
  const std::shared_ptr<PinLog> log_ = std::make_shared<PinLog>();
  Ports ports_{log_};
  std::shared_ptr<Port> port_ = ports_.Open();
};

TEST_F(PortsTest, TheFirstClientIsThisProcessAndRequestsAreCounted) {
  EXPECT_EQ(port_->client(), kLocalClient);
  EXPECT_EQ(ports_.Open()->client(), kLocalClient + 1);
  const Question first(*port_);
  const Question second(*port_);
  EXPECT_EQ(first.id(), (RequestId{kLocalClient, 1}));
  EXPECT_EQ(second.id(), (RequestId{kLocalClient, 2}));
  EXPECT_TRUE(RequestId().empty());
  EXPECT_FALSE(first.id().empty());
}

TEST_F(PortsTest, AnAnswerIsAValueOrWhyThereIsNone) {
  Question opens(*port_);
  Question registers(*port_);
  Question closes(*port_);
  ports_.Deliver(closes.id(), absl::OkStatus());
  ports_.Deliver(registers.id(), absl::InternalError("no"));
  ports_.Deliver(opens.id(), OpenedQueue{7});
  EXPECT_EQ(opens.Await<OpenedQueue>(SystemClock())->id, 7);
  EXPECT_EQ(registers.Await<std::vector<TensorId>>(SystemClock()).status(),
            absl::InternalError("no"));
  EXPECT_TRUE(closes.AwaitStatus(SystemClock()).ok());
}

TEST_F(PortsTest, TheFirstAnswerCounts) {
  Question question(*port_);
  ports_.Deliver(question.id(), absl::InternalError("first"));
  ports_.Deliver(question.id(), absl::OkStatus());
  EXPECT_EQ(question.AwaitStatus(SystemClock()), absl::InternalError("first"));
}

// As of a client whose deadline passed, and of one that is gone.
TEST_F(PortsTest, NobodyHearsOfWhatNobodyAsksAnyMore) {
  RequestId gone;
  {
    const Question question(*port_);
    gone = question.id();
  }
  ports_.Deliver(gone, absl::OkStatus());
  ports_.Deliver(RequestId(), absl::OkStatus());
  ports_.Deliver({.client = 99, .number = 1}, absl::OkStatus());
  port_.reset();
  ports_.Deliver(gone, absl::OkStatus());
  EXPECT_NE(ports_.OpenQueue(gone.client, 5), nullptr);
}

TEST_F(PortsTest, AnotherClientsAnswerWithTheSameNumberIsAnothers) {
  const std::shared_ptr<Port> other = ports_.Open();
  Question here(*port_);
  Question there(*other);
  ASSERT_EQ(here.id().number, there.id().number);
  ports_.Deliver(there.id(), absl::InternalError("there"));
  ports_.Deliver(here.id(), absl::InternalError("here"));
  EXPECT_EQ(here.AwaitStatus(SystemClock()), absl::InternalError("here"));
  EXPECT_EQ(there.AwaitStatus(SystemClock()), absl::InternalError("there"));
}

TEST_F(PortsTest, ManyThreadsWaitEachForItsOwn) {
  constexpr int kAskers = 8;
  constexpr int kRounds = 200;
  Mutex mutex;
  std::vector<RequestId> asked;
  std::vector<std::thread> askers;
  for (int i = 0; i < kAskers; ++i) {
    askers.emplace_back([&] {
      for (int round = 0; round < kRounds; ++round) {
        Question question(*port_);
        {
          MutexLock lock(mutex);
          asked.push_back(question.id());
        }
        const auto opened = question.Await<OpenedQueue>(SystemClock());
        EXPECT_EQ(opened->id, static_cast<int64_t>(question.id().number));
      }
    });
  }
  for (int answered = 0; answered < kAskers * kRounds;) {
    std::vector<RequestId> owed;
    {
      MutexLock lock(mutex);
      owed.swap(asked);
    }
    // The last one first: no order of askers is kept.
    for (auto id = owed.rbegin(); id != owed.rend(); ++id, ++answered) {
      ports_.Deliver(*id, OpenedQueue{static_cast<int64_t>(id->number)});
    }
    std::this_thread::yield();
  }
  for (std::thread& asker : askers) asker.join();
}

TEST_F(PortsTest, AQueuesPortIsTakenOnceByItsClient) {
  const std::shared_ptr<Port> other = ports_.Open();
  const std::shared_ptr<QueueSink> opened =
      ports_.OpenQueue(port_->client(), 3);
  EXPECT_EQ(other->TakeQueue(3), nullptr);
  EXPECT_EQ(port_->TakeQueue(3), opened);
  EXPECT_EQ(port_->TakeQueue(3), nullptr);
  std::vector<ReadyGroup> ready(1);
  ready[0].grants = Grants{{.token = 44}};
  opened->Publish(&ready, false, 0, absl::OkStatus());
  opened->Close();
  EXPECT_THAT(log_->ended,
              ElementsAre(std::make_pair(uint64_t{44}, PinEnd::kUnchanged)));
}

TEST(TokenTest, ATokenSaysWhoseThePinIs) {
  EXPECT_EQ(TokensOf(kLocalClient) | 5, 5u);
  EXPECT_EQ(ClientOfToken(TokensOf(7) | 5), 7);
  EXPECT_NE(TokensOf(7) | 5, TokensOf(8) | 5);
}

}  // namespace
}  // namespace terrace
