#include "daemon/client/request_log.h"

#include <string>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;
using testing::UnorderedElementsAre;

class RequestLogTest : public testing::Test {
 protected:
  void Note(const JobRequest& request) { log_.Note(request, ++posted_); }
  ClaimRequest Claim() const {
    return std::get<ClaimRequest>(log_.Again().at(0));
  }
  // What is said again behind the claim.
  std::vector<JobRequest> Rest() const {
    std::vector<JobRequest> all = log_.Again();
    all.erase(all.begin());
    return all;
  }
  void Open(int64_t queue, uint64_t number = 100) {
    Note(OpenBytesRequest{{.number = number}, 4096, ""});
    log_.OnAnswer(number, OpenedQueue{queue, kDramTier});
  }
  void Push(int64_t queue, uint64_t tag) {
    PushBytesRequest push;
    push.queue = queue;
    push.tag = tag;
    Note(push);
  }
  static ReadyGroup Granted(uint64_t tag, std::vector<uint64_t> tokens) {
    ReadyGroup group;
    group.tag = tag;
    Grants grants;
    for (const uint64_t each : tokens) grants.push_back({.token = each});
    group.grants = grants;
    return group;
  }

  RequestLog log_{4096};
  uint64_t posted_ = 0;
  uint64_t number_ = 0;
};

TEST_F(RequestLogTest, WhatIsAnsweredIsSaidNoMore) {
  TensorSpec spec;
  spec.name = "a";
  Note(RegisterRequest{{.number = 1}, {spec}});
  Note(UnregisterRequest{{.number = 2}, {7}});
  EXPECT_THAT(Claim().known, IsEmpty());
  EXPECT_THAT(Claim().unregistering, ElementsAre(TensorId{7}));
  EXPECT_EQ(Rest().size(), 2u);
  log_.OnAnswer(1, std::vector<TensorId>{{3}});
  EXPECT_THAT(Claim().known, ElementsAre(TensorRange{3, 4}));
  ASSERT_EQ(Rest().size(), 1u);
  EXPECT_TRUE(std::holds_alternative<UnregisterRequest>(Rest()[0]));
  log_.OnAnswer(2, absl::OkStatus());
  log_.OnAnswer(2, absl::OkStatus());
  EXPECT_THAT(Rest(), IsEmpty());
  EXPECT_EQ(log_.posted(), 2u);
}

TEST_F(RequestLogTest, TensorsAreKnownByRangesInWhateverOrderTheyCome) {
  const std::vector<std::vector<TensorId>> answers = {
      {{5}, {6}}, {{8}}, {{7}}, {{2}}, {{4}}, {{0}}, {{0}}, {{1}}};
  for (const std::vector<TensorId>& each : answers) {
    Note(RegisterRequest{{.number = ++number_}, {}});
    log_.OnAnswer(number_, each);
  }
  EXPECT_THAT(Claim().known, ElementsAre(TensorRange{0, 3}, TensorRange{4, 9}));
  Note(RegisterRequest{{.number = ++number_}, {}});
  log_.OnAnswer(number_, absl::AlreadyExistsError("there is one"));
  EXPECT_EQ(Claim().known.size(), 2u);
}

TEST_F(RequestLogTest, GroupsAreAnsweredOnceEachByQueueAndTag) {
  Open(4);
  Push(4, 9);
  Push(4, 9);
  Push(4, 10);
  log_.OnGroups(4, {Granted(9, {50})});
  EXPECT_EQ(Rest().size(), 2u);
  log_.OnGroups(5, {Granted(10, {})});
  EXPECT_EQ(Rest().size(), 2u) << "of another queue";
  log_.OnGroups(4, {Granted(10, {51}), Granted(9, {})});
  EXPECT_THAT(Rest(), IsEmpty());
  EXPECT_THAT(Claim().pins, UnorderedElementsAre(50, 51));
}

TEST_F(RequestLogTest, APinsEndIsSaidAgainUntilItIsDone) {
  Open(4);
  Push(4, 1);
  log_.OnGroups(4, {Granted(1, {50, 51})});
  Note(EndPinRequest{50, PinEnd::kDiscard});
  const uint64_t ended = posted_;
  EXPECT_THAT(Claim().pins, UnorderedElementsAre(50, 51));
  ASSERT_EQ(Rest().size(), 1u);
  EXPECT_EQ(std::get<EndPinRequest>(Rest()[0]).end, PinEnd::kDiscard);
  log_.OnProcessed(ended - 1);
  EXPECT_EQ(Rest().size(), 1u);
  log_.OnProcessed(ended);
  EXPECT_THAT(Rest(), IsEmpty());
  EXPECT_THAT(Claim().pins, ElementsAre(51));
}

TEST_F(RequestLogTest, AQueuesStateIsClaimedUntilItCloses) {
  Open(4);
  Note(StepRequest{{.number = 5}, StepRequest::Kind::kBegin, 4, 17});
  EXPECT_FALSE(Claim().queues.at(0).step.has_value()) << "not answered";
  log_.OnAnswer(5, absl::OkStatus());
  Note(HoldAtMostRequest{4, 8192});
  Note(WaitingRequest{4, {50, 51}, true});
  Note(WaitingRequest{4, {50}, false});
  ASSERT_EQ(Claim().queues.size(), 1u);
  EXPECT_EQ(Claim().queues[0].step, std::optional<int64_t>(17));
  EXPECT_EQ(Claim().queues[0].hold_at_most, 8192);
  ASSERT_EQ(Rest().size(), 1u);
  EXPECT_THAT(std::get<WaitingRequest>(Rest()[0]).in_use, ElementsAre(51));
  Note(StepRequest{{.number = 6}, StepRequest::Kind::kBegin, 4, 18});
  log_.OnAnswer(6, absl::FailedPreconditionError("step 17 is still open"));
  EXPECT_EQ(Claim().queues[0].step, std::optional<int64_t>(17));
  Note(StepRequest{{.number = 7}, StepRequest::Kind::kCommit, 4, 17});
  log_.OnAnswer(7, absl::DataLossError("of a tensor, and the step has ended"));
  EXPECT_FALSE(Claim().queues[0].step.has_value());
  Push(4, 3);
  Note(CloseQueueRequest{4});
  EXPECT_THAT(Claim().queues, IsEmpty());
  EXPECT_THAT(Rest(), IsEmpty());
}

TEST_F(RequestLogTest, RecallsAreKnownUntilThePinEnds) {
  Open(4);
  Push(4, 1);
  ReadyGroup group = Granted(1, {50, 51, 52});
  group.recalls = {52, 99};
  log_.OnGroups(4, {group});
  log_.OnRecalls({50, 98});
  Note(KeepRequest{50});
  Note(KeepRequest{51});
  EXPECT_THAT(Claim().recalled, UnorderedElementsAre(50, 52));
  EXPECT_THAT(Claim().kept, ElementsAre(50));
  Note(EndPinRequest{50, PinEnd::kPublish});
  EXPECT_THAT(Claim().recalled, ElementsAre(52));
  EXPECT_THAT(Claim().kept, IsEmpty());
}

TEST_F(RequestLogTest, MemoryIsWhatWasGranted) {
  Note(GrowRequest{{.number = 1}, 5000});
  Note(GrowRequest{{.number = 2}, 4096});
  EXPECT_EQ(Claim().memory_bytes, 4096);
  log_.OnAnswer(1, absl::OkStatus());
  log_.OnAnswer(2, absl::ResourceExhaustedError("no"));
  EXPECT_EQ(Claim().memory_bytes, 4096 + 8192);
}

}  // namespace
}  // namespace terrace
