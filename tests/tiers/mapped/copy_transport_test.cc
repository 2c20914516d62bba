#include "tiers/copy_transport.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tiers/mapped/copy_fixture.h"

namespace terrace {
namespace {

constexpr Edge kUp = {kFirst, kDramTier};
constexpr Edge kDown = {kDramTier, kFirst};
constexpr Edge kSecondUp = {kSecond, kDramTier};
constexpr Edge kSecondDown = {kDramTier, kSecond};

TEST_F(CopyTransportTest, BytesOfAnySizeArriveAndNoOthersChange) {
  constexpr int64_t kOffset = 4096 + 7;
  uint64_t seed = 0;
  for (const int64_t size :
       {int64_t{1}, int64_t{17}, int64_t{4095}, int64_t{4096}, int64_t{4097},
        kMiB - 1, kMiB, kMiB + 1, 3 * kMiB + 4096, 5 * kMiB + 12345}) {
    for (const Edge edge : {kUp, kDown, kSecondUp, kSecondDown}) {
      const bool up = edge.to == kDramTier;
      auto& medium =
          FarEnd(edge) == kFirst ? first_bytes_.bytes() : second_bytes_.bytes();
      auto& from = up ? medium : dram_;
      auto& to = up ? dram_ : medium;
      FillRandom(absl::MakeSpan(from).first(8 * kMiB), ++seed);
      std::vector<std::byte> expected = to;
      std::copy_n(from.begin() + kOffset, size, expected.begin() + kOffset);
      Begin(7, edge, kOffset, size);
      const auto ends = Finish();
      ASSERT_EQ(ends.size(), 1u);
      EXPECT_TRUE(ends.at(7).ok()) << ends.at(7);
      ASSERT_TRUE(SameBytes(to, expected))
          << size << " bytes, up: " << up << ", of " << FarEnd(edge).number;
    }
  }
}

TEST_F(CopyTransportTest, PiecesAreEqualAndOfOneMebibyteAtMost) {
  Begin(1, kUp, 0, 2 * kMiB + 100);
  Finish();
  std::vector<int64_t> sizes;
  int64_t offset = 0;
  for (const MediumCall& call : first_.calls()) {
    EXPECT_EQ(call.offset, offset);
    offset += call.size_bytes;
    sizes.push_back(call.size_bytes);
  }
  EXPECT_THAT(sizes, testing::ElementsAre(171 * 4096, 171 * 4096,
                                          2 * kMiB + 100 - 2 * 171 * 4096));
}

TEST_F(CopyTransportTest, NothingMovesInTheCallAndItsEndWakes) {
  Begin(1, kUp, 0, 2 * kMiB);
  EXPECT_TRUE(first_.calls().empty());
  EXPECT_TRUE(Poll().empty());
  EXPECT_EQ(executor_->waiting(Lane::kMotion), 2u);
  EXPECT_EQ(executor_->waiting(Lane::kCompute), 0u);
  EXPECT_TRUE(executor_->RunOne());
  EXPECT_EQ(wakes_, 0);
  EXPECT_EQ(transport_->pending(), 1);
  EXPECT_TRUE(executor_->RunOne());
  EXPECT_EQ(wakes_, 1);
  EXPECT_EQ(transport_->pending(), 1);  // until it is told
  EXPECT_EQ(Poll().size(), 1u);
  EXPECT_EQ(transport_->pending(), 0);
  EXPECT_TRUE(Poll().empty());
}

TEST_F(CopyTransportTest, NothingTimesOut) {
  Move move = MoveOf(1, kUp, 0, kMiB, dram_, IoClass::kDemand);
  move.timeout = absl::Seconds(1);
  move.need_by = clock_.Now();
  transport_->Begin(move);
  clock_.JumpTo(clock_.Now() + absl::Hours(1));
  EXPECT_EQ(transport_->NextEvent(), absl::InfiniteFuture());
  EXPECT_TRUE(Poll().empty());
  EXPECT_TRUE(Finish().at(1).ok());
}

TEST_F(CopyTransportTest, AtMostTwoTasksAWorkerAreInTheExecutor) {
  for (const int workers : {1, 3}) {
    Make(workers);
    const auto most = static_cast<size_t>(2 * workers);
    Begin(1, kUp, 0, 10 * kMiB, IoClass::kWriteBack);
    Begin(2, kSecondDown, 10 * kMiB, 10 * kMiB, IoClass::kPrefetch);
    Begin(3, kDown, 20 * kMiB, kMiB);
    EXPECT_EQ(executor_->waiting(), most);
    for (int64_t left = 21; left > 0; --left) {
      EXPECT_EQ(executor_->waiting(), std::min<size_t>(most, left));
      EXPECT_TRUE(executor_->RunOne());
    }
    EXPECT_EQ(executor_->waiting(), 0u);
    EXPECT_EQ(Poll().size(), 3u);
  }
}

TEST_F(CopyTransportTest, ASmallMoveIsOneTask) {
  Make(16);
  Begin(1, kUp, 0, 4096);
  Begin(2, kUp, 4096, 100);
  EXPECT_EQ(executor_->waiting(), 2u);
  EXPECT_EQ(Finish().size(), 2u);
}

TEST_F(CopyTransportTest, AClassOfADirectionIsFirstInFirstOut) {
  Begin(1, kUp, 0, 3 * kMiB, IoClass::kWriteBack);
  Begin(2, kUp, 3 * kMiB, 2 * kMiB, IoClass::kWriteBack);
  Begin(3, kUp, 5 * kMiB, kMiB, IoClass::kWriteBack);
  Finish();
  EXPECT_EQ(Pieces(first_), "abcdef");
}

TEST_F(CopyTransportTest, ClassesHaveTheirShares) {
  const auto move = [this](uint64_t tag, IoClass io_class) {
    Begin(tag, kUp, static_cast<int64_t>(tag) * 10 * kMiB, 10 * kMiB, io_class);
  };
  move(0, IoClass::kWriteBack);
  move(1, IoClass::kPrefetch);
  move(2, IoClass::kDemand);
  Finish();
  const std::string pieces = Pieces(first_);
  ASSERT_EQ(pieces.size(), 30u);
  EXPECT_EQ(pieces[0], 'u');  // the demand's first
  // 4 : 1 : 1 while all three wait.
  int of[3] = {};
  for (const char piece : pieces.substr(0, 12)) ++of[(piece - 'a') / 10];
  EXPECT_NEAR(of[2], 8, 1);
  EXPECT_NEAR(of[1], 2, 1);
  EXPECT_NEAR(of[0], 2, 1);
}

TEST_F(CopyTransportTest, ADemandIsTheNextPieceWhateverIsQueued) {
  for (const IoClass bulk : {IoClass::kPrefetch, IoClass::kWriteBack}) {
    const size_t before = first_.calls().size();
    Begin(1, kUp, 0, 8 * kMiB, bulk);
    executor_->RunOne();
    executor_->RunOne();
    Begin(2, kDown, 20 * kMiB, kMiB);
    executor_->RunOne();
    EXPECT_EQ(Pieces(first_).substr(before), "abu");
    const std::vector<Moved> moved = Poll();
    ASSERT_EQ(moved.size(), 1u);
    EXPECT_EQ(moved[0].tag, 2u);
    Finish();
  }
}

TEST_F(CopyTransportTest, CancelledAtAnyPointItEndsOnce) {
  constexpr int kPieces = 5;
  for (int ran = 0; ran <= kPieces; ++ran) {
    const size_t before = first_.calls().size();
    Begin(1, kDown, 0, kPieces * kMiB);
    Begin(2, kDown, 8 * kMiB, 2 * kMiB);
    for (int i = 0; i < ran; ++i) executor_->RunOne();
    transport_->Cancel(kDown, 1);
    transport_->Cancel(kDown, 1);
    transport_->Cancel(kDown, 99);       // no such move
    transport_->Cancel(kSecondDown, 2);  // nor on this edge
    const auto ends = Finish();
    ASSERT_EQ(ends.size(), 2u);
    EXPECT_TRUE(ends.at(2).ok()) << ends.at(2);
    if (ran == kPieces) {
      EXPECT_TRUE(ends.at(1).ok()) << ends.at(1);
    } else {
      EXPECT_TRUE(absl::IsCancelled(ends.at(1)));
      EXPECT_EQ(ends.at(1).message(),
                "cancelled: first, offset 0, 5242880 bytes");
    }
    EXPECT_EQ(Pieces(first_).substr(before),
              std::string("abcde").substr(0, static_cast<size_t>(ran)) + "ij");
  }
}

TEST_F(CopyTransportTest, WhatIsCancelledBeforeItBeganEndsAtOnce) {
  Begin(1, kDown, 0, kMiB);
  transport_->Cancel(kDown, 1);
  EXPECT_EQ(wakes_, 1);
  const std::vector<Moved> moved = Poll();
  ASSERT_EQ(moved.size(), 1u);
  EXPECT_TRUE(absl::IsCancelled(moved[0].status));
  // The task that it left behind serves what comes next.
  Begin(1, kDown, 0, kMiB);
  EXPECT_EQ(executor_->waiting(), 1u);
  EXPECT_TRUE(Finish().at(1).ok());
}

TEST_F(CopyTransportTest, CancelledWhileAPieceRunsItEndsWhenThatHasLanded) {
  constexpr int64_t kPieces = 4;
  for (int64_t during = 0; during < kPieces; ++during) {
    first_.OnCall([&](const MediumCall& call) {
      if (call.offset != during * kMiB) return;
      transport_->Cancel(kDown, 1);
      EXPECT_TRUE(Poll().empty());
    });
    Begin(1, kDown, 0, kPieces * kMiB);
    const auto ends = Finish();
    ASSERT_EQ(ends.size(), 1u);
    // The last piece was under way: nothing was left to drop.
    EXPECT_EQ(absl::IsCancelled(ends.at(1)), during < kPieces - 1);
    EXPECT_EQ(ends.at(1).ok(), during == kPieces - 1);
  }
  EXPECT_EQ(Pieces(first_), "aababcabcd");
}

TEST_F(CopyTransportTest, TheFirstOfErrorAndCancelDecides) {
  first_.OnCall([&](const MediumCall&) { transport_->Cancel(kDown, 1); });
  first_.Fail(0, absl::InternalError("broken"));
  Begin(1, kDown, 0, 2 * kMiB);
  EXPECT_TRUE(absl::IsCancelled(Finish().at(1)));
  first_.OnCall(nullptr);
  // Its second piece runs inside its first, and fails earlier.
  first_.OnCall([&](const MediumCall& call) {
    if (call.offset == 0) executor_->RunOne();
  });
  first_.Fail(1, absl::InternalError("earlier"));
  Begin(1, kDown, 0, 4 * kMiB);
  EXPECT_EQ(Finish().at(1), absl::InternalError("earlier"));
}

TEST_F(CopyTransportTest, PromotedAtAnyPointItOvertakes) {
  for (int ran = 0; ran < 12; ++ran) {
    const size_t before = first_.calls().size();
    Begin(1, kDown, 0, 12 * kMiB, IoClass::kWriteBack);
    Begin(2, kDown, 20 * kMiB, 4 * kMiB, IoClass::kWriteBack);
    for (int i = 0; i < ran; ++i) executor_->RunOne();
    transport_->Promote(kDown, 2, IoClass::kDemand);
    transport_->Promote(kDown, 2, IoClass::kPrefetch);  // never less urgent
    transport_->Promote(kDown, 99, IoClass::kDemand);   // no such move
    executor_->RunOne();
    EXPECT_EQ(Pieces(first_)[before + static_cast<size_t>(ran)], 'u') << ran;
    // Four of five are its: what is left of the other may have one.
    for (int i = 0; i < 4; ++i) executor_->RunOne();
    const std::string next =
        Pieces(first_).substr(before + static_cast<size_t>(ran), 5);
    EXPECT_EQ(std::count_if(next.begin(), next.end(),
                            [](char piece) { return piece >= 'u'; }),
              4)
        << next;
    EXPECT_EQ(Finish().size(), 2u);
  }
}

TEST_F(CopyTransportTest, WhatIsAllTakenIsPromotedWithoutEffect) {
  first_.OnCall([&](const MediumCall& call) {
    if (call.offset == 0) transport_->Promote(kDown, 1, IoClass::kDemand);
  });
  Begin(1, kDown, 0, kMiB, IoClass::kWriteBack);
  Begin(2, kDown, kMiB, kMiB, IoClass::kWriteBack);
  const auto ends = Finish();
  EXPECT_TRUE(ends.at(1).ok());
  EXPECT_TRUE(ends.at(2).ok());
}

TEST_F(CopyTransportTest, BusyIsTheTimeInWhichPiecesRun) {
  Make(2);
  Begin(1, kUp, 0, 2 * kMiB + 4096);
  clock_.JumpTo(clock_.Now() + absl::Seconds(5));  // it waits
  // The second piece runs inside the first, 2 ms of its 10; the third alone.
  int depth = 0;
  first_.OnCall([&](const MediumCall&) {
    ++depth;
    const auto pass = [&](int ms) {
      clock_.JumpTo(clock_.Now() + absl::Milliseconds(ms));
    };
    pass(1);
    if (first_.calls().size() == 1) {
      EXPECT_EQ(transport_->stats(kFirst).read_busy, absl::Milliseconds(1));
      pass(3);
      executor_->RunOne();
      pass(4);
    } else {
      pass(1);
      EXPECT_EQ(transport_->stats(kFirst).in_flight_bytes,
                depth * (first_.calls().back().size_bytes));
    }
    --depth;
  });
  EXPECT_TRUE(Finish().at(1).ok());
  clock_.JumpTo(clock_.Now() + absl::Seconds(5));
  const IoPathStats stats = transport_->stats(kFirst);
  EXPECT_EQ(stats.read_busy, absl::Milliseconds(10 + 2));
  EXPECT_EQ(stats.write_busy, absl::ZeroDuration());
  EXPECT_EQ(stats.bytes_read, 2 * kMiB + 4096);
  EXPECT_EQ(stats.bytes_written, 0);
  EXPECT_EQ(stats.requests_read, 3);
  EXPECT_EQ(stats.in_flight_bytes, 0);
  EXPECT_EQ(stats.in_flight_limit_bytes, 4 * kMiB);
}

TEST_F(CopyTransportTest, EachTierAndDirectionIsCountedApart) {
  Begin(1, kDown, 0, 3 * kMiB);
  Begin(2, kSecondUp, 4 * kMiB, kMiB);
  second_.Fail(0, absl::InternalError("broken"));
  Finish();
  const IoPathStats first = transport_->stats(kFirst);
  EXPECT_EQ(first.bytes_written, 3 * kMiB);
  EXPECT_EQ(first.requests_written, 3);
  EXPECT_EQ(first.requests_read, 0);
  const IoPathStats second = transport_->stats(kSecond);
  EXPECT_EQ(second.requests_read, 1);
  EXPECT_EQ(second.bytes_read, 0);  // it failed
  EXPECT_EQ(second.in_flight_bytes, 0);
  EXPECT_EQ(second.requests_written, 0);
}

TEST_F(CopyTransportTest, DestroyedWithTasksQueuedItTouchesNothingMore) {
  Begin(1, kDown, 0, 8 * kMiB);
  executor_->RunOne();
  transport_.reset();
  EXPECT_EQ(executor_->RunAll(), 2);
  EXPECT_EQ(Pieces(first_), "a");
  EXPECT_EQ(wakes_, 0);
}

TEST_F(CopyTransportTest, DestroyedWhileAPieceRunsItIsSilent) {
  first_.OnCall([&](const MediumCall&) { transport_.reset(); });
  Begin(1, kDown, 0, kMiB);
  Begin(2, kSecondDown, kMiB, kMiB);
  executor_->RunAll();
  EXPECT_EQ(Pieces(first_), "a");
  EXPECT_EQ(first_bytes_.bytes()[0], dram_[0]);
  EXPECT_TRUE(second_.calls().empty());
  EXPECT_EQ(wakes_, 0);
}

using CopyTransportDeathTest = CopyTransportTest;

TEST_F(CopyTransportDeathTest, OnlyDramAndItsTiersHaveEdges) {
  for (const Edge edge : {Edge{kFirst, kSecond},
                          {kDramTier, kDramTier},
                          {kDramTier, kDisk1},
                          {kNoTier, kDramTier}}) {
    EXPECT_DEATH(Begin(1, edge, 0, kMiB), "internal error");
  }
  EXPECT_DEATH(transport_->stats(kDisk1), "internal error");
}

TEST_F(CopyTransportDeathTest, WhatNoTransferMayAskIsChecked) {
  EXPECT_DEATH(Begin(1, kDown, kBytes - kMiB + 1, kMiB), "internal error");
  EXPECT_DEATH(Begin(1, kDown, 0, 0), "internal error");
  Begin(1, kDown, 0, kMiB);
  EXPECT_DEATH(Begin(1, kUp, kMiB, kMiB), "internal error");  // its tag
  Move move = MoveOf(2, kUp, 0, kMiB, dram_, IoClass::kDemand);
  move.data = nullptr;
  EXPECT_DEATH(transport_->Begin(move), "internal error");
  move = MoveOf(2, kUp, 0, kMiB, dram_, IoClass::kDemand);
  move.to.size_bytes = 2 * kMiB;
  EXPECT_DEATH(transport_->Begin(move), "internal error");
  Finish();
}

}  // namespace
}  // namespace terrace
