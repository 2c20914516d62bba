#include "runtime/messages/intake.h"

#include <deque>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "terrace/byte_queue.h"
#include "tests/support/manual_clock.h"
#include "tests/support/own_child.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr ClientId kClient = 3;

// A client with a queue of two slots of 100 bytes; tensors 0 and 1 fit, tensor
// 2 does not.
class IntakeTest : public testing::Test {
 protected:
  IntakeTest() {
    const std::vector<TensorId> ids = {TensorId{0}, TensorId{1}, TensorId{2}};
    const std::vector<TensorSpec> specs = {{.name = "a", .size_bytes = 100},
                                           {.name = "b", .size_bytes = 1},
                                           {.name = "c", .size_bytes = 101}};
    intake_.OnRegistered(ids, specs);
    intake_.OnOpened(9, 100, 2);
  }

  // As a wire brings it.
  void ExpectRefused(Request request, const std::string& why) {
    const absl::Status status = intake_.Post(std::move(request));
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(why));
    EXPECT_EQ(inbox_->posted(), 0u);
  }
  PushRequest PushOf(const std::vector<int64_t>& tensors,
                     int64_t queue = 9) const {
    PushRequest push{.queue = queue, .deadline = absl::InfiniteFuture()};
    for (const int64_t id : tensors) push.wants.push_back({TensorId{id}});
    return push;
  }
  template <typename Kind>
  Kind Posted() {
    std::deque<Message> messages;
    inbox_->Drain(&messages);
    return std::get<Kind>(std::get<Request>(messages.at(0)));
  }

  VirtualClock clock_;
  const std::shared_ptr<Inbox> inbox_ = std::make_shared<Inbox>([] {});
  Intake intake_{kClient, clock_, inbox_};
};

TEST_F(IntakeTest, WhatTheWindowCannotHoldIsRefused) {
  ExpectRefused(PushOf({}), "a group of 0 tensors; the window has 2 slots");
  ExpectRefused(PushOf({0, 1, 0}), "a group of 3 tensors");
  ExpectRefused(PushOf({7}), "no tensor 7");
  ExpectRefused(PushOf({-1}), "no tensor -1");
  ExpectRefused(PushOf({2}), "tensor 2 has 101 bytes; a slot holds 100");
  ExpectRefused(PushOf({1, 1}), "tensor 1 twice in one group");
}

TEST_F(IntakeTest, AQueueThatTheClientHasNotIsRefused) {
  ExpectRefused(PushOf({0}, 8), "no queue 8");
  ExpectRefused(StepRequest{.queue = 8}, "no queue 8");
  ExpectRefused(CloseQueueRequest{8}, "no queue 8");
}

TEST_F(IntakeTest, AClosedQueueIsNoneAnyMore) {
  EXPECT_TRUE(intake_.Post(CloseQueueRequest{9}).ok());
  EXPECT_EQ(Posted<CloseQueueRequest>().queue, 9);
  EXPECT_EQ(intake_.Post(PushOf({0})),
            absl::InvalidArgumentError("no queue 9"));
  EXPECT_EQ(intake_.Post(CloseQueueRequest{9}),
            absl::InvalidArgumentError("no queue 9"));
  EXPECT_EQ(inbox_->posted(), 1u);
}

TEST_F(IntakeTest, AnotherClientsTensorIsNoneOfThis) {
  Intake other(kClient + 1, clock_, inbox_);
  other.OnOpened(10, 100, 2);
  EXPECT_EQ(other.Post(PushOf({0}, 10)),
            absl::InvalidArgumentError("no tensor 0"));
  EXPECT_EQ(other.Post(UnregisterRequest{{}, TensorId{0}}),
            absl::InvalidArgumentError("no tensor 0"));
  EXPECT_EQ(other.SizeOf(TensorId{0}), -1);
  EXPECT_EQ(inbox_->posted(), 0u);
}

TEST_F(IntakeTest, AnotherClientsPinIsNotEnded) {
  ExpectRefused(EndPinRequest{TokensOf(kClient + 1) | 5, PinEnd::kDiscard},
                "is of client 4, and this is client 3");
  ExpectRefused(EndPinRequest{5, PinEnd::kDiscard}, "is of client 0");
  const uint64_t own = TokensOf(kClient) | 5;
  EXPECT_TRUE(intake_.Post(EndPinRequest{own, PinEnd::kDiscard}).ok());
  EXPECT_EQ(Posted<EndPinRequest>().token, own);
}

// A client's word for who it is does not count.
TEST_F(IntakeTest, ARequestHasTheClientThatSentIt) {
  const RequestId claimed = {.client = 77, .number = 5};
  EXPECT_TRUE(intake_.Post(Request(StatsRequest{claimed})).ok());
  EXPECT_EQ(Posted<StatsRequest>().id, (RequestId{kClient, 5}));
}

TEST_F(IntakeTest, ADeadlineIsByTheRuntimesClockInside) {
  clock_.SetWall(absl::Hours(1));
  PushRequest push = PushOf({1});
  push.deadline = clock_.WallNow() + absl::Seconds(5);
  ASSERT_TRUE(intake_.Post(push).ok());
  EXPECT_EQ(Posted<PushRequest>().deadline, clock_.Now() + absl::Seconds(5));
  OpenRequest open{.slot_bytes = 1, .slots = 1};
  open.deadline = clock_.WallNow() - absl::Seconds(5);  // late already
  ASSERT_TRUE(intake_.Post(open).ok());
  EXPECT_EQ(Posted<OpenRequest>().deadline, clock_.Now() - absl::Seconds(5));
  open.deadline = absl::InfiniteFuture();
  ASSERT_TRUE(intake_.Post(open).ok());
  EXPECT_EQ(Posted<OpenRequest>().deadline, absl::InfiniteFuture());
}

TEST_F(IntakeTest, SizesAreLookedAt) {
  ExpectRefused(RegisterRequest{.specs = {{.name = "", .size_bytes = 1}}},
                "tensor '' of 1 bytes");
  ExpectRefused(RegisterRequest{.specs = {{.name = "a", .size_bytes = 1},
                                          {.name = "b", .size_bytes = -1}}},
                "tensor 'b' of -1 bytes");
  ExpectRefused(
      RegisterRequest{
          .specs = {{.name = "a", .size_bytes = 1, .step_number = -2}}},
      "with number -2 in its step");
  ExpectRefused(RegisterRequest{.specs = {{.name = "a",
                                           .size_bytes = 1,
                                           .step_number = int64_t{1} << 31}}},
                "with number 2147483648 in its step");
  ExpectRefused(RegisterRequest{.specs = {{.name = std::string(65'537, 'n'),
                                           .size_bytes = 1}}},
                "a tensor's name of 65537 bytes: 'nnnn");
  ExpectRefused(
      OpenRequest{
          .slot_bytes = 5, .slots = 1, .tier = std::string(65'537, 't')},
      "a queue at a tier with a name of 65537 bytes: 'tttt");
  ExpectRefused(OpenRequest{.slot_bytes = 0, .slots = 2},
                "a window of 2 slots of 0 bytes");
  ExpectRefused(OpenRequest{.slot_bytes = 5, .slots = -1},
                "a window of -1 slots of 5 bytes");
}

TEST_F(IntakeTest, AValueThatItsTypeHasNotIsRefused) {
  PushRequest push = PushOf({0});
  push.wants[0].access = static_cast<Access>(3);
  ExpectRefused(push, "an access 3: there is none");
  ExpectRefused(
      StepRequest{.kind = static_cast<StepRequest::Kind>(3), .queue = 9},
      "a step's change 3: there is none");
  ExpectRefused(EndPinRequest{TokensOf(kClient) | 1, static_cast<PinEnd>(9)},
                "a pin's end 9: there is none");
}

// A queue of bytes beside the one with slots.
class IntakeOfBytes : public IntakeTest {
 protected:
  IntakeOfBytes() { intake_.OnOpenedBytes(10); }
  PushBytesRequest BytesOf(const std::vector<int64_t>& tensors) const {
    PushBytesRequest push{.queue = 10, .deadline = absl::InfiniteFuture()};
    for (const int64_t id : tensors) push.wants.push_back({TensorId{id}});
    return push;
  }
};

TEST_F(IntakeOfBytes, HoldsAnySizeAndNoTensorTwice) {
  EXPECT_TRUE(intake_.Post(BytesOf({0, 1, 2})).ok());
  EXPECT_EQ(Posted<PushBytesRequest>().wants.size(), 3u);
  EXPECT_EQ(intake_.Post(BytesOf({2, 2})),
            absl::InvalidArgumentError("tensor 2 twice in one group"));
  EXPECT_EQ(intake_.Post(BytesOf({7})),
            absl::InvalidArgumentError("no tensor 7"));
  EXPECT_TRUE(absl::IsInvalidArgument(intake_.Post(BytesOf({}))));
}

TEST_F(IntakeOfBytes, AQueueTakesItsOwnKindOfGroupAlone) {
  ExpectRefused(PushOf({0}, 10), "queue 10 is one of bytes");
  PushBytesRequest push = BytesOf({0});
  push.queue = 9;
  ExpectRefused(push, "queue 9 has slots");
  ExpectRefused(TouchRequest{.queue = 9}, "queue 9 has slots");
  ExpectRefused(WaitingRequest{.queue = 9}, "queue 9 has slots");
  ExpectRefused(WaitingRequest{.queue = 8}, "no queue 8");
  ExpectRefused(HoldAtMostRequest{.queue = 9}, "queue 9 has slots");
  ExpectRefused(HoldAtMostRequest{.queue = 10, .bytes = -1}, "most -1 bytes");
  ExpectRefused(OpenBytesRequest{.window_bytes = 0}, "a window of 0 bytes");
}

TEST_F(IntakeOfBytes, AUseIsInALaneThatTheQueueHas) {
  PushBytesRequest push = BytesOf({0});
  push.lane = kMostLanes;
  ExpectRefused(push, "lane 4 of a queue of bytes, which has 4");
  push.lane = -1;
  ExpectRefused(push, "lane -1 of a queue of bytes");
  ExpectRefused(TouchRequest{.queue = 10, .lane = kMostLanes}, "lane 4");
  push.lane = kMostLanes - 1;
  EXPECT_TRUE(intake_.Post(push).ok());
  EXPECT_EQ(Posted<PushBytesRequest>().lane, kMostLanes - 1);
}

TEST_F(IntakeOfBytes, AnotherClientsPinIsNeitherKeptNorInUse) {
  const uint64_t others = TokensOf(kClient + 1) | 5;
  ExpectRefused(KeepRequest{others}, "is of client 4, and this is client 3");
  PushBytesRequest push = BytesOf({0});
  push.in_use = {TokensOf(kClient) | 4, others};
  ExpectRefused(push, "is of client 4, and this is client 3");
  ExpectRefused(WaitingRequest{.queue = 10, .in_use = {others}},
                "is of client 4, and this is client 3");
  EXPECT_TRUE(intake_.Post(KeepRequest{TokensOf(kClient) | 5}).ok());
}

TEST_F(IntakeOfBytes, ATouchJoinsOneThatWasNotRead) {
  TouchRequest touch{.queue = 10, .tensors = {TensorId{0}}};
  EXPECT_TRUE(intake_.Post(touch).ok());
  touch.tensors = {TensorId{2}, TensorId{50}, TensorId{1}};
  EXPECT_TRUE(intake_.Post(touch).ok());
  EXPECT_EQ(inbox_->posted(), 1u);
  EXPECT_THAT(Posted<TouchRequest>().tensors,
              ElementsAre(TensorId{0}, TensorId{2}, TensorId{1}));
  EXPECT_TRUE(intake_.Post(touch).ok());  // that one was read
  EXPECT_EQ(inbox_->posted(), 2u);
  touch.lane = 1;  // by itself, as it has another order
  EXPECT_TRUE(intake_.Post(touch).ok());
  EXPECT_EQ(inbox_->posted(), 3u);
  EXPECT_EQ(inbox_->requests(), 3);
}

TEST_F(IntakeOfBytes, WhatIsNotReadDoesNotGrowWithoutAnEnd) {
  const std::vector<TensorId> uses(700, TensorId{1});
  for (int i = 0; i < 100; ++i) {
    EXPECT_TRUE(intake_.Post(TouchRequest{.queue = 10, .tensors = uses}).ok());
  }
  EXPECT_EQ(inbox_->posted(), 1u);
  EXPECT_LE(Posted<TouchRequest>().tensors.size(), size_t{16} << 10);
}

TEST_F(IntakeTest, AHintMayNameWhatHasGone) {
  intake_.OnUnregistered(TensorId{1});
  PrefetchRequest hint;
  hint.tensors = {TensorId{2}, TensorId{1}, TensorId{0}, TensorId{50}};
  EXPECT_TRUE(intake_.Post(hint).ok());
  EXPECT_THAT(Posted<PrefetchRequest>().tensors,
              ElementsAre(TensorId{2}, TensorId{0}));
}

TEST_F(IntakeTest, AfterTheRuntimeEverythingIsCancelled) {
  inbox_->Shut();
  EXPECT_TRUE(absl::IsCancelled(intake_.Post(PushOf({0}))));
  EXPECT_TRUE(absl::IsCancelled(intake_.Post(PushOf({7}))));
  EXPECT_TRUE(absl::IsCancelled(intake_.Post(StatsRequest())));
}

TEST_F(IntakeTest, AForkedChildIsRefused) {
  EXPECT_TRUE(InChild([&] {
    const absl::Status status = intake_.Post(PushOf({7}));
    return absl::IsCancelled(status);
  }));
}

}  // namespace
}  // namespace terrace
