// What an I/O timeout counts: the time for which a device leaves a transfer
// unanswered, and not that behind our own transfers.
#include <cstdint>
#include <map>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/aio/io_queue_fixture.h"

namespace terrace {
namespace {

using testing::IsEmpty;

constexpr absl::Duration kTimeout = absl::Seconds(1);

class IoQueueTimeoutTest : public IoQueueTest {
 protected:
  void ReadPiece(uint64_t tag) {
    Enqueue(IoDirection::kRead, static_cast<int64_t>(tag) << 20, kPiece, tag,
            IoClass::kDemand, kTimeout);
  }
  void Pass(absl::Duration time) { clock_.JumpTo(clock_.Now() + time); }
};

// Twice the limit, and one answer in 0.9 timeouts: the last one takes long.
TEST_F(IoQueueTimeoutTest, WhatWaitsBehindOursDoesNotExpireWhileItIsAnswered) {
  for (uint64_t tag = 1; tag <= 6; ++tag) ReadPiece(tag);
  EXPECT_THAT(Poll(), IsEmpty());
  for (uint64_t tag = 1; tag <= 6; ++tag) {
    Pass(0.9 * kTimeout);
    EXPECT_THAT(Poll(), IsEmpty());
    engine_->Complete(0);
    const auto ended = Poll();
    ASSERT_EQ(ended.size(), 1u);
    EXPECT_EQ(ended[0].tag, tag);
    EXPECT_TRUE(ended[0].status.ok()) << ended[0].status;
  }
  EXPECT_EQ(io_->NextEvent(), absl::InfiniteFuture());
}

TEST_F(IoQueueTimeoutTest, ATransferOfManyPiecesMayTakeMuchLonger) {
  Enqueue(IoDirection::kWrite, 0, 9 * kPiece, 1, IoClass::kWriteBack, kTimeout);
  Poll();
  for (int i = 0; i < 8; ++i) {
    Pass(0.9 * kTimeout);
    engine_->Complete(0);
    EXPECT_THAT(Poll(), IsEmpty());
  }
  engine_->Complete(0);
  const auto ended = Poll();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_TRUE(ended[0].status.ok()) << ended[0].status;
}

TEST_F(IoQueueTimeoutTest, WhatTheEngineHasNotBegunComesBack) {
  engine_->set_begun(1);
  ReadPiece(1);
  ReadPiece(2);
  const auto ended = Watch(1.5 * kTimeout);
  ASSERT_EQ(ended.size(), 2u);
  for (const Completion& each : ended) {
    EXPECT_TRUE(absl::IsDeadlineExceeded(each.status)) << each.status;
    EXPECT_EQ(each.quarantined, each.tag == 1) << each.tag;
  }
  EXPECT_EQ(io_->stats(path_).quarantined_bytes, kPiece);
  EXPECT_EQ(io_->stats(path_).requests_read, 1);
  EXPECT_EQ(engine_->in_flight().size(), 1u);
  engine_->CompleteAll();
  EXPECT_TRUE(Poll()[0].released);
}

TEST_F(IoQueueTimeoutTest, ACancelTakesBackWhatHasNotBegun) {
  engine_->set_begun(1);
  ReadPiece(1);
  ReadPiece(2);
  Poll();
  EXPECT_TRUE(io_->Cancel(path_, 2));
  const auto ended = Poll();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_TRUE(absl::IsCancelled(ended[0].status)) << ended[0].status;
  engine_->CompleteAll();
  EXPECT_EQ(Poll().size(), 1u);
}

// They are the engine's still, and no other path's.
TEST_F(IoQueueTimeoutTest, LateOnesKeepToTheSlotsOfTheirPath) {
  engine_->set_slots(1);
  path_ = *io_->AddPath("/mnt/b/state", 1, {.adapts = false});
  ReadPiece(1);
  ASSERT_EQ(Watch(1.5 * kTimeout).size(), 1u);
  ReadPiece(2);
  const auto ended = Watch(1.5 * kTimeout);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_TRUE(absl::IsDeadlineExceeded(ended[0].status)) << ended[0].status;
  EXPECT_FALSE(ended[0].quarantined);
  EXPECT_EQ(engine_->submitted().size(), 1u);
  ReadPiece(3);
  engine_->Complete(0);
  EXPECT_TRUE(Poll()[0].released);
  EXPECT_EQ(engine_->submitted().size(), 2u);
  engine_->Complete(0);
  EXPECT_TRUE(Poll()[0].status.ok());
}

TEST_F(IoQueueTimeoutTest, AnswersToLaterRequestsDoNotKeepALostOneAlive) {
  ReadPiece(1);  // lost
  Poll();
  const absl::Time issued = clock_.Now();
  std::vector<Completion> ended;
  for (uint64_t tag = 2; ended.empty(); ++tag) {
    Pass(0.01 * kTimeout);
    ASSERT_LE(clock_.Now(), issued + kTimeout);
    ReadPiece(tag);
    ended = Poll();
    engine_->Complete(1);
    for (const Completion& completion : Poll()) {
      EXPECT_TRUE(completion.status.ok()) << completion.status;
    }
  }
  EXPECT_EQ(clock_.Now(), issued + kTimeout);
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].tag, 1u);
  EXPECT_TRUE(ended[0].quarantined);
  engine_->CompleteAll();
  EXPECT_TRUE(Poll()[0].released);
}

// Of a device that answers nothing: what is in flight, what waits since then,
// and what came half a timeout later.
TEST_F(IoQueueTimeoutTest, BehindASilentDeviceAllEndWithinTwoTimeouts) {
  const absl::Time start = clock_.Now();
  for (uint64_t tag = 1; tag <= 8; ++tag) ReadPiece(tag);
  Poll();
  Pass(kTimeout / 2);
  for (uint64_t tag = 9; tag <= 16; ++tag) ReadPiece(tag);
  std::map<uint64_t, absl::Duration> ends;
  while (ends.size() < 16) {
    for (const Completion& completion : Poll()) {
      EXPECT_TRUE(absl::IsDeadlineExceeded(completion.status));
      EXPECT_TRUE(ends.emplace(completion.tag, clock_.Now() - start).second);
    }
    if (ends.size() == 16) break;
    ASSERT_LT(io_->NextEvent(), absl::InfiniteFuture());
    clock_.JumpTo(io_->NextEvent());
  }
  for (uint64_t tag = 1; tag <= 8; ++tag) EXPECT_EQ(ends[tag], kTimeout);
  // Two of them had the room that the first ones left.
  for (uint64_t tag = 9; tag <= 10; ++tag) EXPECT_EQ(ends[tag], 2 * kTimeout);
  for (uint64_t tag = 11; tag <= 16; ++tag) {
    EXPECT_EQ(ends[tag], 1.5 * kTimeout);
  }
  EXPECT_EQ(io_->stats(path_).quarantined_bytes, 4 * kPiece);
  engine_->CompleteAll();
  EXPECT_EQ(Poll().size(), 4u);
  EXPECT_EQ(io_->pending(), 0);
}

TEST_F(IoQueueTimeoutTest, WhatAnEngineNeverTakesExpires) {
  engine_->set_room(0);
  ReadPiece(1);
  Poll();
  const absl::Time start = clock_.Now();
  std::vector<Completion> ended;
  while (ended.empty()) {
    ASSERT_LT(io_->NextEvent(), absl::InfiniteFuture());
    clock_.JumpTo(io_->NextEvent());
    ended = Poll();
  }
  EXPECT_EQ(clock_.Now(), start + kTimeout);
  EXPECT_TRUE(absl::IsDeadlineExceeded(ended[0].status));
  EXPECT_FALSE(ended[0].quarantined);
}

// A process that was stopped: its threads answer when they run again, and it
// looks before they do.
TEST_F(IoQueueTimeoutTest, WhatWasNotLookedAtIsNotLate) {
  ReadPiece(1);
  ReadPiece(2);
  ReadPiece(3);  // not in flight
  EXPECT_THAT(Watch(0.4 * kTimeout), IsEmpty());
  Pass(100 * kTimeout);
  EXPECT_THAT(Poll(), IsEmpty());
  EXPECT_THAT(Watch(0.9 * kTimeout), IsEmpty());
  engine_->CompleteAll();
  EXPECT_EQ(Poll().size(), 2u);
  engine_->CompleteAll();
  const auto ended = Poll();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_TRUE(ended[0].status.ok()) << ended[0].status;
}

TEST_F(IoQueueTimeoutTest, AGapBeforeTheLastLookIsNotedToo) {
  ReadPiece(1);
  EXPECT_THAT(Watch(0.1 * kTimeout), IsEmpty());
  Pass(0.9 * kTimeout);  // awake again just when it would expire
  EXPECT_THAT(Poll(), IsEmpty());
  engine_->CompleteAll();
  const auto ended = Poll();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_TRUE(ended[0].status.ok()) << ended[0].status;
}

TEST_F(IoQueueTimeoutTest, ASilentDeviceIsLateOneTimeoutAfterAGap) {
  ReadPiece(1);
  EXPECT_THAT(Watch(0.9 * kTimeout), IsEmpty());
  Pass(10 * kTimeout);
  const absl::Time end = clock_.Now();
  EXPECT_THAT(Watch(kTimeout - absl::Nanoseconds(1)), IsEmpty());
  const auto ended = Watch(absl::Nanoseconds(1));
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_TRUE(absl::IsDeadlineExceeded(ended[0].status));
  EXPECT_EQ(clock_.Now(), end + kTimeout);
  engine_->CompleteAll();
  EXPECT_TRUE(Poll()[0].released);
}

// An idle queue need not be looked at.
TEST_F(IoQueueTimeoutTest, WhatIsAskedAfterALongSilenceHasItsTimeoutOnly) {
  ReadPiece(1);
  Poll();
  engine_->CompleteAll();
  EXPECT_EQ(Poll().size(), 1u);
  EXPECT_EQ(io_->NextEvent(), absl::InfiniteFuture());
  Pass(100 * kTimeout);
  ReadPiece(2);
  EXPECT_EQ(Watch(kTimeout).size(), 1u);
  engine_->CompleteAll();
  EXPECT_TRUE(Poll()[0].released);
}

}  // namespace
}  // namespace terrace
