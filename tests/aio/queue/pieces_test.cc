// A piece from its issue to what its result means, without a queue.
#include <cerrno>
#include <cstdint>
#include <string>

#include "aio/queue/in_flight_use.h"
#include "aio/queue/piece_outcome.h"
#include "aio/queue/piece_table.h"
#include "base/bytes.h"
#include "gtest/gtest.h"

namespace terrace {
namespace {

const absl::Time kEnqueued = absl::FromUnixSeconds(1000);
constexpr int64_t kFourBlocks = 4 * kBlockBytes;

class PieceTableTest : public testing::Test {
 protected:
  PieceTableTest() {
    transfer_.request.data = reinterpret_cast<std::byte*>(1 << 20);
    transfer_.request.offset = kBlockBytes;
    transfer_.request.size_bytes = 8 * kFourBlocks;
    transfer_.enqueued = kEnqueued;
  }
  // In flight from then on; its slot.
  int Issue(absl::Time now) {
    const int slot = pieces_.Add(&transfer_, kFourBlocks);
    pieces_.Tag(slot);
    pieces_.Issue(slot, now);
    return slot;
  }
  void Answer(int slot, absl::Time now) {
    pieces_.Answer({pieces_[slot].request.tag, kFourBlocks}, now);
    pieces_.Drop(slot);
  }

  Transfer transfer_;
  PieceTable pieces_{3, 5};
};

TEST_F(PieceTableTest, PiecesFollowEachOtherInTheTransfer) {
  for (int i = 0; i < 3; ++i) {
    const Piece& piece = pieces_[pieces_.Add(&transfer_, kFourBlocks)];
    EXPECT_EQ(piece.request.file, 5);
    EXPECT_EQ(piece.request.offset, kBlockBytes + i * kFourBlocks);
    EXPECT_EQ(piece.request.data, transfer_.request.data + i * kFourBlocks);
    EXPECT_EQ(transfer_.live_pieces, i + 1);
  }
}

TEST_F(PieceTableTest, ATagNamesThePathAndIsNeverUsedAgain) {
  const int slot = Issue(kEnqueued);
  const uint64_t tag = pieces_[slot].request.tag;
  EXPECT_EQ(PieceTable::PathOf(tag), 3);
  Answer(slot, kEnqueued);
  const int again = Issue(kEnqueued);
  EXPECT_EQ(again, slot);
  EXPECT_NE(pieces_[again].request.tag, tag);
  EXPECT_DEATH(pieces_.Answer({tag, kFourBlocks}, kEnqueued), "result.tag");
  Answer(again, kEnqueued);
}

TEST_F(PieceTableTest, AnAnswerIsAwaitedAnewByWhatWasIssuedNoEarlier) {
  const absl::Duration second = absl::Seconds(1);
  const int lost = Issue(kEnqueued);
  const int first = Issue(kEnqueued + second);
  const int later = Issue(kEnqueued + 2 * second);
  Answer(first, kEnqueued + 3 * second);
  EXPECT_EQ(pieces_[lost].waits_since, kEnqueued);
  EXPECT_EQ(pieces_[later].waits_since, kEnqueued + 3 * second);
  EXPECT_EQ(pieces_.SilentSince(transfer_), kEnqueued);
  Answer(lost, kEnqueued + 4 * second);
  Answer(later, kEnqueued + 5 * second);
  // With none in flight, since the last answer.
  EXPECT_EQ(pieces_.SilentSince(transfer_), kEnqueued + 5 * second);
}

PieceOutcome Outcome(IoDirection direction, int64_t result) {
  const IoRequest request = {0,           direction,   nullptr,
                             kBlockBytes, kFourBlocks, 0};
  return OutcomeOf(request, result, "/mnt/a/state", {});
}

TEST(PieceOutcome, GoesOnBehindTheLastWholeBlock) {
  const PieceOutcome outcome =
      Outcome(IoDirection::kRead, 2 * kBlockBytes + 17);
  EXPECT_EQ(outcome.moved_bytes, 2 * kBlockBytes);
}

TEST(PieceOutcome, TheTableOfErrors) {
  const IoQueueOptions defaults;
  const struct {
    IoDirection direction;
    int64_t result;
    int retries;
    absl::StatusCode code;
  } kRows[] = {
      {IoDirection::kRead, 17, defaults.max_retries,
       absl::StatusCode::kDataLoss},
      {IoDirection::kRead, 0, 0, absl::StatusCode::kDataLoss},
      {IoDirection::kWrite, 0, 0, absl::StatusCode::kUnavailable},
      {IoDirection::kRead, -EAGAIN, defaults.max_retries,
       absl::StatusCode::kUnavailable},
      {IoDirection::kWrite, -EINTR, defaults.max_retries,
       absl::StatusCode::kUnavailable},
      {IoDirection::kRead, -EIO, defaults.read_error_retries,
       absl::StatusCode::kDataLoss},
      {IoDirection::kWrite, -EIO, 0, absl::StatusCode::kUnavailable},
      {IoDirection::kWrite, -ENOSPC, 0, absl::StatusCode::kResourceExhausted},
  };
  for (const auto& row : kRows) {
    SCOPED_TRACE(testing::Message() << row.result);
    const PieceOutcome outcome = Outcome(row.direction, row.result);
    EXPECT_EQ(outcome.moved_bytes, 0);
    EXPECT_EQ(outcome.retries, row.retries);
    EXPECT_EQ(outcome.error.code(), row.code) << outcome.error;
    EXPECT_NE(outcome.error.message().find("/mnt/a/state, offset 4096"),
              std::string::npos)
        << outcome.error;
  }
}

TEST(PieceOutcome, PausesDoubleUpToFiftyMilliseconds) {
  EXPECT_EQ(RetryPause(0), absl::Microseconds(100));
  EXPECT_EQ(RetryPause(3), absl::Microseconds(800));
  EXPECT_EQ(RetryPause(1000), absl::Milliseconds(50));
}

TEST(InFlightUse, OnePieceHasRoomHoweverLarge) {
  InFlightUse use;
  EXPECT_TRUE(use.HasRoom(kFourBlocks, kBlockBytes));
  use.Enter(IoDirection::kRead, kFourBlocks);
  EXPECT_FALSE(use.HasRoom(kBlockBytes, kFourBlocks));
  EXPECT_TRUE(use.HasRoom(kBlockBytes, kFourBlocks + kBlockBytes));
  use.Leave(IoDirection::kRead, kFourBlocks);
  EXPECT_TRUE(use.HasRoom(kFourBlocks, kBlockBytes));
}

TEST(InFlightUse, HoldsSixtyFourPiecesAtMost) {
  InFlightUse use;
  for (int i = 0; i < InFlightUse::kMaxPieces; ++i) {
    EXPECT_TRUE(use.HasRoom(kBlockBytes, int64_t{1} << 30));
    use.Enter(IoDirection::kRead, kBlockBytes);
  }
  EXPECT_FALSE(use.HasRoom(kBlockBytes, int64_t{1} << 30));
}

TEST(InFlightUse, OneDirectionLeavesHalfToTheOther) {
  InFlightUse use;
  use.Enter(IoDirection::kRead, kFourBlocks);
  EXPECT_FALSE(
      use.LeavesHalf(IoDirection::kRead, kFourBlocks, 3 * kFourBlocks));
  EXPECT_TRUE(use.LeavesHalf(IoDirection::kRead, kFourBlocks, 4 * kFourBlocks));
  EXPECT_TRUE(
      use.LeavesHalf(IoDirection::kWrite, kFourBlocks, 3 * kFourBlocks));
}

}  // namespace
}  // namespace terrace
