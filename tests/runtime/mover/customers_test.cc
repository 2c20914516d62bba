#include "runtime/mover/customers.h"

#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/runtime/messages/pin_log.h"
#include "tests/support/fake_reserver.h"
#include "tests/support/manual_clock.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

class CustomersTest : public testing::Test {
 protected:
  // A group for one tensor; returns its id.
  uint64_t Push(Customer& customer, uint64_t tag, int64_t tensor,
                absl::Time deadline = absl::InfiniteFuture()) {
    customers_.Push(customer, {.queue = customer.id,
                               .wants = {{TensorId{tensor}, Access::kRead}},
                               .tag = tag,
                               .deadline = deadline});
    return customer.waiting.rbegin()->first;
  }
  absl::StatusOr<ReadyGroup> Take(Customer& customer) {
    return static_cast<QueuePort&>(*customer.port)
        .Take(clock_, 0, clock_.Now());
  }
  absl::Time After(int seconds) {
    return clock_.Now() + absl::Seconds(seconds);
  }

  VirtualClock clock_;
  const std::shared_ptr<PinLog> log_ = std::make_shared<PinLog>();
  Ports ports_{log_};
  const std::shared_ptr<Port> port_ = ports_.Open();
  Transcript transcript_;
  FakeReserver memory_{kDramTier};
  std::vector<Window*> changed_;
  Window window_{kDramTier, memory_.Give(0), 8192, 1, &changed_};
  Customers customers_{clock_, ports_, &transcript_};
  Customer& first_ = customers_.Open(window_);
  Customer& second_ = customers_.Open(window_);
};

TEST_F(CustomersTest, QueuesAreNumberedAndInTheOrderTheyCame) {
  EXPECT_EQ(first_.id, 0);
  EXPECT_EQ(second_.id, 1);
  EXPECT_THAT(customers_.open(), ElementsAre(&first_, &second_));
  EXPECT_EQ(customers_.FindOpen(1), &second_);
  EXPECT_EQ(customers_.FindOpen(2), nullptr);
  EXPECT_EQ(customers_.Find(2), nullptr);
}

// Whose client is gone has a port that nobody takes.
TEST_F(CustomersTest, AQueuesPortIsItsClients) {
  EXPECT_EQ(port_->TakeQueue(first_.id), first_.port);
  std::shared_ptr<Port> other = ports_.Open();
  const Customer& third = customers_.Open(window_, other->client());
  EXPECT_EQ(third.client, other->client());
  EXPECT_EQ(port_->TakeQueue(third.id), nullptr);
  EXPECT_EQ(other->TakeQueue(third.id), third.port);
  const ClientId gone = other->client();
  other.reset();
  EXPECT_NE(customers_.Open(window_, gone).port, nullptr);
}

TEST_F(CustomersTest, GroupsWaitFirstInFirstOut) {
  Push(first_, 70, 1);
  Push(first_, 60, 2);
  ASSERT_EQ(first_.waiting.size(), 2u);
  EXPECT_EQ(first_.waiting.begin()->second.tag, 70u);
  EXPECT_TRUE(customers_.wanted().Contains(TensorId{2}));
  EXPECT_FALSE(customers_.wanted().Contains(TensorId{3}));
}

TEST_F(CustomersTest, TheNextDeadlineIsTheFirstOfAny) {
  EXPECT_EQ(customers_.NextDeadline(), absl::InfiniteFuture());
  Push(first_, 1, 1, After(5));
  Push(first_, 2, 1, After(3));
  const uint64_t soonest = Push(second_, 3, 1, After(2));
  EXPECT_EQ(customers_.NextDeadline(), After(2));
  customers_.EraseWaiting(second_, soonest);
  EXPECT_EQ(customers_.NextDeadline(), After(3));
  EXPECT_THAT(second_.waiting, IsEmpty());
  EXPECT_TRUE(customers_.wanted().Contains(TensorId{1}));
}

TEST_F(CustomersTest, WhatIsReadyIsHandedOverWhenPublished) {
  const uint64_t id = Push(first_, 9, 1);
  customers_.Fail(first_, first_.waiting.at(id), absl::DataLossError("gone"));
  EXPECT_TRUE(absl::IsDeadlineExceeded(Take(first_).status()));
  EXPECT_THAT(customers_.Publish(4), IsEmpty());
  const absl::StatusOr<ReadyGroup> ready = Take(first_);
  ASSERT_TRUE(ready.ok());
  EXPECT_EQ(ready->tag, 9u);
  EXPECT_EQ(ready->grants.status(), absl::DataLossError("gone"));
  EXPECT_TRUE(absl::IsDeadlineExceeded(Take(second_).status()));
  ASSERT_EQ(transcript_.size(), 1u);
  EXPECT_EQ(transcript_[0].event, TranscriptEvent::kReady);
  EXPECT_EQ(transcript_[0].code, absl::StatusCode::kDataLoss);
  EXPECT_EQ(transcript_[0].queue, 0);
  EXPECT_EQ(transcript_[0].tag, 9u);
}

TEST_F(CustomersTest, AClosedQueueWantsNothingAndItsReadyPinsEndUnchanged) {
  ReadyGroup ready;
  ready.grants = Grants{{.token = 33, .tensor = TensorId{1}}};
  customers_.AddReady(first_, std::move(ready));
  Push(first_, 1, 5, After(1));
  customers_.Close(first_);
  EXPECT_THAT(log_->ended,
              ElementsAre(std::make_pair(33u, PinEnd::kUnchanged)));
  EXPECT_FALSE(customers_.wanted().Contains(TensorId{5}));
  EXPECT_EQ(customers_.NextDeadline(), absl::InfiniteFuture());
  EXPECT_THAT(customers_.open(), ElementsAre(&second_));
  EXPECT_EQ(customers_.FindOpen(0), nullptr);
  EXPECT_EQ(customers_.Find(0), &first_);  // for its pins
}

TEST_F(CustomersTest, AClosedQueueIsGoneAfterItsLastPinAndFetch) {
  first_.held_pins = 1;
  first_.admitted = 1;
  customers_.Close(first_);
  customers_.NoteIfEnded(first_);
  EXPECT_THAT(customers_.Publish(0), IsEmpty());
  first_.admitted = 0;
  customers_.NoteIfEnded(first_);
  EXPECT_THAT(customers_.Publish(0), IsEmpty());
  first_.held_pins = 0;
  customers_.NoteIfEnded(first_);
  customers_.NoteIfEnded(second_);  // it is open
  EXPECT_THAT(customers_.Publish(0), ElementsAre(0));
  EXPECT_EQ(customers_.Find(0), nullptr);
  EXPECT_THAT(customers_.Publish(0), IsEmpty());
}

TEST_F(CustomersTest, AQueueIsActiveWhileATurnHasToLookAtIt) {
  Customer& bytes = customers_.OpenBytes(1, kDramTier, kLocalClient);
  EXPECT_THAT(customers_.active(), IsEmpty());
  const uint64_t waits = Push(second_, 1, 1);
  const uint64_t goes = Push(first_, 2, 1);
  customers_.AddRecall(bytes, 5);
  EXPECT_THAT(customers_.active(), ElementsAre(&first_, &second_, &bytes));
  customers_.EraseWaiting(first_, goes);
  customers_.Publish(1);  // that the first waits no more
  EXPECT_THAT(customers_.active(), ElementsAre(&second_));
  customers_.EraseWaiting(second_, waits);
  second_.admitted = 1;
  customers_.Publish(2);
  EXPECT_THAT(customers_.active(), ElementsAre(&second_));
  customers_.Close(second_);
  EXPECT_THAT(customers_.active(), IsEmpty());
  customers_.AddReady(second_, {});  // its fetch ends
  EXPECT_THAT(customers_.active(), IsEmpty());
}

TEST_F(CustomersTest, AtTheEndAllPortsAreClosed) {
  Push(first_, 1, 5);
  customers_.CloseAll();
  EXPECT_TRUE(absl::IsCancelled(Take(first_).status()));
  EXPECT_TRUE(absl::IsCancelled(Take(second_).status()));
  EXPECT_FALSE(customers_.wanted().Contains(TensorId{5}));
}

TEST_F(CustomersTest, AnOpenStepHearsTheFirstError) {
  customers_.Report(0, absl::InternalError("between steps"));
  EXPECT_TRUE(first_.first_error.ok());
  first_.step = 1;
  customers_.Report(0, absl::InternalError("first"));
  customers_.Report(0, absl::InternalError("second"));
  customers_.Report(-1, absl::InternalError("nobody's"));
  EXPECT_EQ(first_.first_error, absl::InternalError("first"));
  EXPECT_TRUE(second_.first_error.ok());
}

TEST_F(CustomersTest, StepsBeginAndEndInTurn) {
  using Kind = StepRequest::Kind;
  const auto check = [this](Kind kind, int64_t step) {
    return Customers::CheckStep(first_, {.kind = kind, .step = step});
  };
  EXPECT_TRUE(check(Kind::kBegin, 7).ok());
  EXPECT_EQ(check(Kind::kCommit, 7),
            absl::FailedPreconditionError("no step is open"));
  EXPECT_EQ(check(Kind::kAbort, 7),
            absl::FailedPreconditionError("no step is open"));
  first_.step = 7;
  EXPECT_EQ(check(Kind::kBegin, 8),
            absl::FailedPreconditionError("step 7 is still open"));
  EXPECT_EQ(check(Kind::kCommit, 8),
            absl::FailedPreconditionError("step 7 is open, not step 8"));
  EXPECT_TRUE(check(Kind::kCommit, 7).ok());
  EXPECT_TRUE(check(Kind::kAbort, 0).ok());
}

}  // namespace
}  // namespace terrace
