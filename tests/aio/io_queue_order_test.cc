// In which pieces and in which order IoQueue sends.
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/aio/io_queue_fixture.h"

namespace terrace {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

using IoQueueOrderTest = IoQueueTest;

TEST_F(IoQueueOrderTest, CutsATransferIntoEqualPiecesWithinTheLimit) {
  Read(9 * kBlock);  // three pieces of three blocks
  EXPECT_THAT(Poll(), IsEmpty());
  EXPECT_THAT(InFlightOffsets(), ElementsAre(kBlock, 4 * kBlock));
  EXPECT_EQ(engine_->in_flight()[1].data, buffer_.data() + 3 * kBlock);
  EXPECT_EQ(io_->stats(path_).in_flight_bytes, 6 * kBlock);
  engine_->Complete(1);  // any order
  EXPECT_THAT(Poll(), IsEmpty());
  EXPECT_THAT(InFlightOffsets(), ElementsAre(kBlock, 7 * kBlock));
  engine_->CompleteAll();
  const auto ended = Poll();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_TRUE(ended[0].status.ok());
  EXPECT_EQ(ended[0].tag, 1u);
  EXPECT_EQ(io_->stats(path_).bytes_read, 9 * kBlock);
  EXPECT_EQ(io_->stats(path_).requests_read, 3);
  EXPECT_EQ(io_->pending(), 0);
}

TEST_F(IoQueueOrderTest, OffersAgainWhatTheEngineDidNotTake) {
  engine_->set_room(0);
  Read(2 * kPiece);
  Poll();
  EXPECT_THAT(engine_->in_flight(), IsEmpty());
  // Nothing is in flight that could wake us: there must be a time.
  EXPECT_LT(io_->NextEvent(), clock_.Now() + absl::Seconds(1));
  engine_->set_room(1);
  Poll();
  EXPECT_THAT(InFlightOffsets(), ElementsAre(kBlock));
  engine_->set_room(10);
  Poll();
  EXPECT_THAT(InFlightOffsets(), ElementsAre(kBlock, kBlock + kPiece));
  engine_->CompleteAll();
  EXPECT_EQ(Poll().size(), 1u);
  EXPECT_EQ(io_->stats(path_).requests_read, 2);
}

TEST_F(IoQueueOrderTest, APieceLargerThanTheLimitGoesAlone) {
  IoQueueOptions options;
  options.in_flight_bytes = kBlock;
  options.piece_bytes = kPiece;
  options.adapts = false;
  const int narrow = *io_->AddPath("narrow", 1, options);
  io_->Enqueue(narrow, {IoDirection::kRead, IoClass::kDemand, buffer_.data(), 0,
                        2 * kPiece, 1});
  Poll();
  EXPECT_EQ(engine_->in_flight().size(), 1u);
  engine_->CompleteAll();
  EXPECT_THAT(Poll(), IsEmpty());
  EXPECT_EQ(engine_->in_flight().size(), 1u);
  engine_->CompleteAll();
  EXPECT_EQ(Poll().size(), 1u);
}

TEST_F(IoQueueOrderTest, SharesBandwidthFourToFourToOneToOne) {
  // All always have work; offsets tell the classes apart.
  constexpr int kEach = 400;
  for (int i = 0; i < kEach; ++i) {
    for (int c = 0; c < kIoClasses; ++c) {
      Enqueue(IoDirection::kRead, c * (1 << 20), kPiece,
              static_cast<uint64_t>(c * kEach + i), static_cast<IoClass>(c));
    }
  }
  Poll();
  while (engine_->submitted().size() < 480) {
    engine_->Complete(0);
    Poll();
  }
  std::map<int64_t, int> issued;
  for (size_t i = 0; i < 480; ++i) {
    ++issued[engine_->submitted()[i].offset >> 20];
  }
  EXPECT_NEAR(issued[0], 192, 10);
  EXPECT_NEAR(issued[1], 192, 10);
  EXPECT_NEAR(issued[2], 48, 5);
  EXPECT_NEAR(issued[3], 48, 5);
  while (io_->pending() > 0) {
    engine_->CompleteAll();
    Poll();
  }
}

TEST_F(IoQueueOrderTest, ADemandOutOfSilenceWaitsForTheLimitOnly) {
  Enqueue(IoDirection::kWrite, 0, 16 * kPiece, 1, IoClass::kWriteBack);
  Enqueue(IoDirection::kRead, 0, 16 * kPiece, 2, IoClass::kPrefetch);
  Poll();
  Enqueue(IoDirection::kRead, 1 << 20, kBlock, 3, IoClass::kDemand);
  engine_->Complete(0);
  Poll();
  EXPECT_EQ(engine_->submitted().back().offset, 1 << 20);
  while (io_->pending() > 0) {
    engine_->CompleteAll();
    Poll();
  }
}

TEST_F(IoQueueOrderTest, PromoteMovesATransferAheadOfItsOldClass) {
  Enqueue(IoDirection::kRead, 0, 2 * kPiece, 1, IoClass::kPrefetch);
  Enqueue(IoDirection::kRead, 0, 8 * kPiece, 2, IoClass::kPrefetch);
  Enqueue(IoDirection::kRead, 1 << 20, kPiece, 3, IoClass::kPrefetch);
  Poll();
  io_->Promote(path_, 3, IoClass::kDemand);
  io_->Promote(path_, 99, IoClass::kDemand);  // long gone: no harm
  for (int i = 0; i < 2; ++i) {
    engine_->Complete(0);
    Poll();
  }
  const auto& submitted = engine_->submitted();
  EXPECT_TRUE(submitted[2].offset == 1 << 20 || submitted[3].offset == 1 << 20);
  while (io_->pending() > 0) {
    engine_->CompleteAll();
    Poll();
  }
}

TEST_F(IoQueueOrderTest, WhoIsDueFirstInAClassGoesFirst) {
  Enqueue(IoDirection::kRead, 0, 2 * kPiece, 1);  // no room is left
  Poll();
  const auto read = [&](uint64_t tag, absl::Duration timeout,
                        IoClass io_class = IoClass::kDemand) {
    Enqueue(IoDirection::kRead, static_cast<int64_t>(tag) << 20, kPiece, tag,
            io_class, timeout);
  };
  read(2, absl::InfiniteDuration());
  read(3, absl::Seconds(9));
  read(4, absl::Seconds(3));
  read(5, absl::Seconds(9));  // after the other that is due then
  read(6, absl::Seconds(1), IoClass::kPrefetch);
  read(7, absl::Seconds(5));
  read(8, absl::Seconds(2), IoClass::kPrefetch);
  io_->Promote(path_, 8, IoClass::kDemand);
  std::vector<int64_t> order;
  while (io_->pending() > 0) {
    engine_->Complete(0);
    Poll();
  }
  for (size_t i = 2; i < engine_->submitted().size(); ++i) {
    const int64_t tag = engine_->submitted()[i].offset >> 20;
    if (tag != 6) order.push_back(tag);  // its class has a share of its own
  }
  EXPECT_THAT(order, ElementsAre(8, 4, 7, 3, 5, 2));
  EXPECT_EQ(engine_->submitted().size(), 9u);
}

TEST_F(IoQueueOrderTest, WhoIsDueFirstOvertakesATransferThatIsPartlyOut) {
  Enqueue(IoDirection::kRead, 0, 4 * kPiece, 1, IoClass::kDemand,
          absl::Seconds(9));
  Poll();
  Enqueue(IoDirection::kRead, 1 << 20, kPiece, 2, IoClass::kDemand,
          absl::Seconds(1));
  engine_->Complete(0);
  Poll();
  EXPECT_EQ(engine_->submitted().back().offset, 1 << 20);
  // What was cut off is finished, and only once.
  int ended = 0;
  while (io_->pending() > 0) {
    engine_->CompleteAll();
    ended += static_cast<int>(Poll().size());
  }
  EXPECT_EQ(ended, 2);
  EXPECT_EQ(io_->stats(path_).bytes_read, 5 * kPiece);
}

TEST_F(IoQueueOrderTest, PathsHaveLimitsOfTheirOwn) {
  IoQueueOptions options;
  options.in_flight_bytes = kLimit;
  options.piece_bytes = kPiece;
  options.adapts = false;
  const int other = *io_->AddPath("/mnt/b/state", 1, options);
  Read(8 * kPiece, 1);
  io_->Enqueue(other, {IoDirection::kRead, IoClass::kDemand, buffer_.data(), 0,
                       kBlock, 1});
  Poll();
  ASSERT_EQ(engine_->in_flight().size(), 3u);
  engine_->Complete(2, 0);
  const auto ended = Poll();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].path, other);
  EXPECT_THAT(std::string(ended[0].status.message()),
              HasSubstr("/mnt/b/state"));
  while (io_->pending() > 0) {
    engine_->CompleteAll();
    Poll();
  }
}

TEST_F(IoQueueTest, WhatNeedsLessRoomDoesNotOvertakeARetry) {
  Read(kPiece);
  Poll();
  engine_->Complete(0, -EAGAIN);
  Poll();
  constexpr int kSmall = 64;
  for (uint64_t tag = 2; tag < 2 + kSmall; ++tag) Read(kBlock, tag);
  Poll();
  ASSERT_EQ(engine_->in_flight().size(), kLimit / kBlock);
  clock_.JumpTo(clock_.Now() + absl::Seconds(1));
  // As many answers as its room takes.
  for (int i = 0; i < kPiece / kBlock; ++i) {
    Poll();
    engine_->Complete(0);
  }
  Poll();
  EXPECT_EQ(engine_->in_flight().back().size_bytes, kPiece);
  while (io_->pending() > 0) {
    engine_->CompleteAll();
    Poll();
  }
}

}  // namespace
}  // namespace terrace
