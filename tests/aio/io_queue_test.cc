// What IoQueue makes of an engine's results, row by row.
#include <cerrno>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/aio/io_queue_fixture.h"

namespace terrace {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

TEST_F(IoQueueTest, ContinuesAShortTransferFromTheLastAlignedByte) {
  Read(4 * kBlock);
  Poll();
  engine_->Complete(0, 2 * kBlock + 512);
  EXPECT_THAT(Poll(), IsEmpty());
  ASSERT_EQ(engine_->in_flight().size(), 1u);
  const IoRequest rest = engine_->in_flight()[0];
  EXPECT_EQ(rest.offset, 3 * kBlock);
  EXPECT_EQ(rest.size_bytes, 2 * kBlock);
  EXPECT_EQ(rest.data, buffer_.data() + 2 * kBlock);
  engine_->CompleteAll();
  const auto ended = Poll();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_TRUE(ended[0].status.ok());
  EXPECT_EQ(io_->stats(path_).continuations, 1);
  EXPECT_EQ(io_->stats(path_).retries, 0);  // progress is not a retry
}

TEST_F(IoQueueTest, EndsAReadThatNeverFillsABlockAsDataLoss) {
  const Completion end = EndOf(IoDirection::kRead, 512);
  EXPECT_EQ(end.status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(engine_->submitted().size(), 9u);
}

TEST_F(IoQueueTest, ZeroBeforeTheEndIsDataLossForAReadWithoutRetry) {
  const Completion end = EndOf(IoDirection::kRead, 0);
  EXPECT_EQ(end.status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(end.status.message(),
            "read failed: /mnt/a/state, offset 4096, 4096 bytes: unexpected "
            "end of file");
  EXPECT_EQ(engine_->submitted().size(), 1u);
}

TEST_F(IoQueueTest, ZeroIsAnErrorOfAWrite) {
  const Completion end = EndOf(IoDirection::kWrite, 0);
  EXPECT_EQ(end.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(engine_->submitted().size(), 1u);
}

TEST_F(IoQueueTest, RetriesEagainEightTimesWithAGrowingPause) {
  const absl::Time start = clock_.Now();
  const Completion end = EndOf(IoDirection::kWrite, -EAGAIN);
  EXPECT_EQ(end.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(end.status.message()), HasSubstr("EAGAIN"));
  EXPECT_EQ(engine_->submitted().size(), 9u);
  EXPECT_EQ(io_->stats(path_).retries, 8);
  // 100 us x (1 + 2 + ... + 128).
  EXPECT_EQ(clock_.Now() - start, absl::Microseconds(25500));
}

TEST_F(IoQueueTest, GoesOnAfterAnInterruptedCall) {
  Read(kBlock);
  Poll();
  engine_->Complete(0, -EINTR);
  EXPECT_THAT(Poll(), IsEmpty());
  EXPECT_THAT(engine_->in_flight(), IsEmpty());  // not before its pause
  clock_.JumpTo(io_->NextEvent());
  Poll();
  engine_->CompleteAll();
  const auto ended = Poll();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_TRUE(ended[0].status.ok());
}

TEST_F(IoQueueTest, RetriesEioOfAReadTwiceThenLosesTheData) {
  const Completion end = EndOf(IoDirection::kRead, -EIO);
  EXPECT_EQ(end.status.code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(end.status.message(),
            "read failed: /mnt/a/state, offset 4096, 4096 bytes: EIO "
            "(Input/output error)");
  EXPECT_EQ(engine_->submitted().size(), 3u);
}

TEST_F(IoQueueTest, NeverRetriesEioOfAWrite) {
  const Completion end = EndOf(IoDirection::kWrite, -EIO);
  EXPECT_EQ(end.status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(end.status.message()),
              HasSubstr("write failed: /mnt/a/state, offset 4096"));
  EXPECT_EQ(engine_->submitted().size(), 1u);
}

TEST_F(IoQueueTest, NamesAFullDiskResourceExhausted) {
  for (const int error : {ENOSPC, EDQUOT, EFBIG}) {
    const size_t before = engine_->submitted().size();
    const Completion end = EndOf(IoDirection::kWrite, -error);
    EXPECT_EQ(end.status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(engine_->submitted().size(), before + 1);
  }
}

TEST_F(IoQueueTest, NamesAddressOffsetAndLengthOfACallThatOnlyWeCanCause) {
  for (const int error : {EINVAL, EBADF, EFAULT}) {
    const Completion end = EndOf(IoDirection::kRead, -error);
    EXPECT_EQ(end.status.code(), absl::StatusCode::kInternal);
    EXPECT_THAT(std::string(end.status.message()), HasSubstr("address 0x"));
  }
}

TEST_F(IoQueueTest, KeepsTheFirstErrorAndEndsWhenNothingIsInFlight) {
  Write(5 * kPiece);
  Poll();
  engine_->Complete(0, -ENOSPC);
  EXPECT_THAT(Poll(), IsEmpty());  // one piece is still the kernel's
  ASSERT_EQ(engine_->in_flight().size(), 1u);
  engine_->Complete(0, -EIO);
  const auto ended = Poll();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(engine_->submitted().size(), 2u);  // the rest was dropped
  EXPECT_EQ(io_->stats(path_).bytes_written, 0);
}

TEST_F(IoQueueTest, DropsAPieceThatWaitsForItsRetryWhenAnotherFails) {
  Write(2 * kPiece);
  Poll();
  engine_->Complete(0, -EAGAIN);
  Poll();
  engine_->Complete(0, -EIO);
  const auto ended = Poll();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_THAT(std::string(ended[0].status.message()), HasSubstr("EIO"));
  EXPECT_EQ(io_->NextEvent(), absl::InfiniteFuture());
}

TEST_F(IoQueueTest, CancelLetsTheIssuedLandAndDropsTheRest) {
  Read(5 * kPiece);
  Poll();
  EXPECT_TRUE(io_->Cancel(path_, 1));
  EXPECT_THAT(Poll(), IsEmpty());
  engine_->CompleteAll();
  const auto ended = Poll();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].status.code(), absl::StatusCode::kCancelled);
  EXPECT_EQ(engine_->submitted().size(), 2u);
  EXPECT_FALSE(io_->Cancel(path_, 1));
}

// As the kernel counts: what a failed or cancelled transfer moved has moved.
TEST_F(IoQueueTest, CountsTheBytesThatMovedWhateverTheirTransferCameTo) {
  Write(4 * kPiece);
  Poll();
  EXPECT_TRUE(io_->Cancel(path_, 1));
  engine_->Complete(0);
  engine_->Complete(0, kBlock + 512);
  ASSERT_EQ(Poll().size(), 1u);
  EXPECT_EQ(io_->stats(path_).bytes_written, kPiece + kBlock + 512);

  Write(2 * kPiece, 2);
  Poll();
  engine_->Complete(0);
  engine_->Complete(0, -ENOSPC);
  ASSERT_EQ(Poll().size(), 1u);
  EXPECT_EQ(io_->stats(path_).bytes_written, 2 * kPiece + kBlock + 512);

  Read(kPiece, 3);  // half a block of it twice
  Poll();
  engine_->Complete(0, kBlock + 512);
  Poll();
  engine_->Complete(0);
  ASSERT_EQ(Poll().size(), 1u);
  EXPECT_EQ(io_->stats(path_).bytes_read, kPiece + 512);
  EXPECT_EQ(io_->stats(path_).in_flight_bytes, 0);
}

TEST_F(IoQueueTest, CancelOfAnUnissuedTransferEndsItAtOnce) {
  Read(2 * kPiece, 1);
  Read(kPiece, 2);
  Poll();
  EXPECT_TRUE(io_->Cancel(path_, 2));
  EXPECT_LE(io_->NextEvent(), clock_.Now());
  const auto ended = Poll();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].tag, 2u);
  EXPECT_EQ(ended[0].status.code(), absl::StatusCode::kCancelled);
  engine_->CompleteAll();
  EXPECT_EQ(Poll().size(), 1u);
}

TEST_F(IoQueueTest, CancelOfWhatTheEngineDidNotTakeAsksForTheRefill) {
  engine_->set_room(1);
  Read(2 * kPiece, 1);  // one piece in flight, one offered in vain
  Enqueue(IoDirection::kRead, 1 << 20, kPiece, 2);
  Poll();
  EXPECT_TRUE(io_->Cancel(path_, 1));
  EXPECT_LE(io_->NextEvent(), clock_.Now());
  engine_->set_room(1);
  EXPECT_THAT(Poll(), IsEmpty());
  ASSERT_EQ(engine_->in_flight().size(), 2u);
  EXPECT_EQ(engine_->in_flight()[1].offset, 1 << 20);
  engine_->CompleteAll();
  EXPECT_EQ(Poll().size(), 2u);
}

TEST_F(IoQueueTest, QuarantinesTheBufferOfAnExpiredTransfer) {
  Enqueue(IoDirection::kRead, kBlock, 3 * kPiece, 1, IoClass::kDemand,
          absl::Seconds(1));
  Poll();
  EXPECT_THAT(Watch(absl::Seconds(1) - absl::Nanoseconds(1)), IsEmpty());
  EXPECT_EQ(io_->NextEvent(), clock_.Now() + absl::Nanoseconds(1));
  auto ended = Watch(absl::Nanoseconds(1));
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(ended[0].quarantined);
  EXPECT_FALSE(ended[0].released);
  EXPECT_EQ(io_->stats(path_).quarantined_bytes, 2 * kPiece);
  EXPECT_EQ(io_->pending(), 1);

  Read(kPiece, 2);  // the limit is not the stuck transfer's for ever
  Poll();
  EXPECT_EQ(engine_->in_flight().size(), 3u);
  engine_->CompleteAll();
  ended = Poll();
  ASSERT_EQ(ended.size(), 2u);
  EXPECT_EQ(ended[0].tag, 1u);
  EXPECT_TRUE(ended[0].released);
  // One piece was never read.
  EXPECT_EQ(ended[0].status.code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_TRUE(ended[1].status.ok());
  EXPECT_EQ(io_->stats(path_).quarantined_bytes, 0);
  EXPECT_EQ(io_->pending(), 0);
}

TEST_F(IoQueueTest, AReleasedWriteThatWasWholeSaysSo) {
  Enqueue(IoDirection::kWrite, kBlock, kPiece, 1, IoClass::kWriteBack,
          absl::Seconds(1));
  EXPECT_EQ(Watch(absl::Seconds(1)).size(), 1u);
  engine_->CompleteAll();
  const auto ended = Poll();
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_TRUE(ended[0].released);
  EXPECT_TRUE(ended[0].status.ok());
}

TEST_F(IoQueueTest, AnUnissuedTransferExpiresWithoutQuarantine) {
  Read(2 * kPiece, 1);
  Poll();  // no room is left
  Enqueue(IoDirection::kRead, 0, kPiece, 2, IoClass::kDemand, absl::Seconds(1));
  const auto ended = Watch(absl::Seconds(1));
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_EQ(ended[0].tag, 2u);
  EXPECT_FALSE(ended[0].quarantined);
  EXPECT_EQ(ended[0].status.code(), absl::StatusCode::kDeadlineExceeded);
  engine_->CompleteAll();
  EXPECT_EQ(Poll().size(), 1u);
}

TEST_F(IoQueueTest, AbandonLeavesTransfersBehindWithoutACheck) {
  Read(kPiece);
  Poll();
  io_->Abandon();
  testing::internal::CaptureStderr();
  io_.reset();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST_F(IoQueueTest, DestroyingItWithTransfersInFlightIsABug) {
  Read(kPiece);
  Poll();
  EXPECT_DEATH(io_.reset(), "in_flight");
  engine_->CompleteAll();
  Poll();
}

}  // namespace
}  // namespace terrace
