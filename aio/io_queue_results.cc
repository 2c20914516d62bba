// What becomes of a result, the table of outcomes, and of what gets none in
// time. The rest of IoQueue, what goes out and when, is in io_queue.cc.
#include <algorithm>
#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "aio/io_error.h"
#include "aio/io_queue.h"
#include "runtime/base/check.h"

namespace terrace {
namespace {

constexpr absl::Duration kFirstPause = absl::Microseconds(100);
constexpr absl::Duration kLongestPause = absl::Milliseconds(50);

}  // namespace

void IoQueue::OnResult(const IoResult& result) {
  const int slot = SlotOf(result.tag);
  TERRACE_CHECK(slot < static_cast<int>(pieces_.size()));
  Piece& piece = pieces_[slot];
  // Fails when an engine completes a request twice.
  TERRACE_CHECK(result.tag == MakeTag(path_, piece.generation, slot));
  TERRACE_CHECK(piece.state == PieceState::kInFlight);
  TERRACE_CHECK(result.result <= piece.request.size_bytes);
  Transfer* const transfer = piece.transfer;
  NoteAnswer(piece, result.result);
  --in_flight_;
  --transfer->in_flight_pieces;
  stats_.in_flight_bytes -= piece.request.size_bytes;
  if (piece.quarantined) {
    stats_.quarantined_bytes -= piece.request.size_bytes;
  } else {
    LeaveWindow(piece.request);
    NoteInFlight(piece.request.direction, -1, last_answer_);
  }
  piece.state = PieceState::kWaiting;
  if (result.result > 0) {
    const bool is_read = piece.request.direction == IoDirection::kRead;
    (is_read ? stats_.bytes_read : stats_.bytes_written) += result.result;
  }
  if (result.result == piece.request.size_bytes) {
    DropPiece(slot);
  } else if (result.result > 0) {
    ContinuePiece(slot, result.result);
  } else if (result.result == 0) {
    const bool is_read = piece.request.direction == IoDirection::kRead;
    FailTransfer(transfer,
                 is_read ? RequestError(absl::StatusCode::kDataLoss, name_,
                                        piece.request, "unexpected end of file")
                         : IoError(name_, piece.request, EIO));
    DropPiece(slot);
  } else {
    OnError(slot, static_cast<int>(-result.result));
  }
  Settle(transfer);
}

void IoQueue::ContinuePiece(int slot, int64_t moved_bytes) {
  Piece& piece = pieces_[slot];
  if (piece.transfer->stopped()) {
    piece.transfer->has_drops = true;
    DropPiece(slot);
    return;
  }
  const int64_t aligned = moved_bytes / kAlignment * kAlignment;
  if (aligned == 0) {
    // Less than a block: the same block again, but not for ever.
    const bool is_read = piece.request.direction == IoDirection::kRead;
    RetryPiece(slot, options_.max_retries,
               is_read ? RequestError(absl::StatusCode::kDataLoss, name_,
                                      piece.request, "unexpected end of file")
                       : IoError(name_, piece.request, EIO));
    return;
  }
  piece.request.data += aligned;
  piece.request.offset += aligned;
  piece.request.size_bytes -= aligned;
  ++stats_.continuations;
  waiting_.emplace(absl::InfinitePast(), slot);
  changed_ = true;
}

void IoQueue::RetryPiece(int slot, int limit, const absl::Status& error) {
  Piece& piece = pieces_[slot];
  if (piece.transfer->stopped() || piece.attempts >= limit) {
    FailTransfer(piece.transfer, error);
    DropPiece(slot);
    return;
  }
  const absl::Duration pause = std::min(
      kFirstPause * (1 << std::min(piece.attempts, 20)), kLongestPause);
  ++piece.attempts;
  ++stats_.retries;
  waiting_.emplace(clock_.Now() + pause, slot);
}

void IoQueue::FailTransfer(Transfer* transfer, const absl::Status& error) {
  transfer->has_drops = true;
  if (transfer->first_error.ok()) transfer->first_error = error;
  DropUnissued(transfer);
}

void IoQueue::OnError(int slot, int error) {
  const Piece& piece = pieces_[slot];
  int limit = 0;
  if (error == EAGAIN || error == EINTR) {
    limit = options_.max_retries;
  } else if (error == EIO && piece.request.direction == IoDirection::kRead) {
    limit = options_.read_error_retries;
  }
  RetryPiece(slot, limit, IoError(name_, piece.request, error));
}

absl::Status IoQueue::StatusOf(const Transfer& transfer) const {
  if (transfer.cancelled) {
    return absl::CancelledError(
        absl::StrCat("cancelled: ", name_, ", offset ", transfer.request.offset,
                     ", ", transfer.request.size_bytes, " bytes"));
  }
  return transfer.first_error;
}

// Who did not answer, for how long, and how much waits for it.
absl::Status IoQueue::LateError(const Transfer& transfer) const {
  const IoTransfer& request = transfer.request;
  const absl::Duration silence =
      clock_.Now() - (ExpiryOf(transfer) - request.timeout);
  return RequestError(
      absl::StatusCode::kDeadlineExceeded, name_,
      {file_, request.direction, request.data, request.offset,
       request.size_bytes, 0},
      absl::StrCat(
          "deadline exceeded: no answer for ",
          absl::FormatDuration(absl::Floor(silence, absl::Milliseconds(1))),
          ", ", stats_.in_flight_bytes, " bytes in flight"));
}

void IoQueue::Finish(Transfer* transfer) {
  const IoTransfer& request = transfer->request;
  Completion completion{path_, request.tag, StatusOf(*transfer), false,
                        transfer->expired};
  if (completion.status.ok() && transfer->has_drops) {
    completion.status = LateError(*transfer);
  }
  expiries_.erase({transfer->check_at, request.tag});
  ended_.push_back(std::move(completion));
  transfers_.erase(request.tag);
}

// Never falls while the transfer is pending. What is not issued waits for the
// device's next answer, whosever it is.
absl::Time IoQueue::ExpiryOf(const Transfer& transfer) const {
  absl::Time since = std::max(transfer.enqueued, last_answer_);
  if (transfer.in_flight_pieces > 0) {
    since = absl::InfiniteFuture();
    for (const Piece& piece : pieces_) {
      if (piece.transfer == &transfer && piece.state == PieceState::kInFlight) {
        since = std::min(since, piece.waits_since);
      }
    }
  }
  return std::max(since, watch_.since()) + transfer.request.timeout;
}

void IoQueue::CheckExpiries(absl::Time now) {
  while (!expiries_.empty() && expiries_.begin()->first <= now) {
    const uint64_t tag = expiries_.begin()->second;
    expiries_.erase(expiries_.begin());
    Transfer* const transfer = transfers_.at(tag).get();
    transfer->check_at = ExpiryOf(*transfer);
    if (transfer->check_at > now) {
      expiries_.emplace(transfer->check_at, tag);
    } else {
      Expire(transfer);
    }
  }
}

void IoQueue::Expire(Transfer* transfer) {
  DropUnissued(transfer);
  if (transfer->live_pieces == 0) {  // not in flight: the buffer is free
    Settle(transfer);
    return;
  }
  transfer->expired = true;
  const absl::Time now = clock_.Now();
  for (Piece& piece : pieces_) {
    if (piece.transfer != transfer) continue;
    // What the kernel may never give back does not use up the window.
    piece.quarantined = true;
    NoteInFlight(piece.request.direction, -1, now);
    stats_.quarantined_bytes += piece.request.size_bytes;
    LeaveWindow(piece.request);
  }
  ended_.push_back(
      {path_, transfer->request.tag, LateError(*transfer), true, false});
}

}  // namespace terrace
