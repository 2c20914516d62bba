#include "aio/queue/io_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "aio/io_error.h"
#include "aio/queue/own_link.h"
#include "aio/queue/piece_outcome.h"
#include "base/bytes.h"
#include "base/check.h"

namespace terrace {
namespace {

constexpr absl::Duration kEngineFullPause = absl::Microseconds(100);

// What is left of it, to be issued again.
LinkPiece AskFor(const Piece& piece) {
  return {piece.request.direction, piece.transfer->request.io_class,
          piece.request.size_bytes};
}

}  // namespace

IoQueue::IoQueue(int path, std::string name, int file,
                 const IoQueueOptions& options, const JoinLink& join,
                 IoEngine& engine, Clock& clock)
    : path_(path),
      name_(std::move(name)),
      file_(file),
      options_(options),
      slots_(engine.Slots(file)),
      engine_(engine),
      clock_(clock),
      schedule_(options.weights),
      pieces_(path, file),
      link_(join ? join([&engine] { engine.Wake(); })
                 : std::make_unique<OwnLink>(options, slots_)) {
  TERRACE_CHECK(options.in_flight_bytes > 0 &&
                options.piece_bytes >= kBlockBytes);
  TERRACE_CHECK(options.piece_bytes % kBlockBytes == 0);
}

void IoQueue::Enqueue(const IoTransfer& request) {
  TERRACE_CHECK(request.data != nullptr && request.size_bytes > 0);
  TERRACE_CHECK(reinterpret_cast<intptr_t>(request.data) % kBlockBytes == 0);
  TERRACE_CHECK(request.offset >= 0 && request.offset % kBlockBytes == 0);
  TERRACE_CHECK(request.size_bytes % kBlockBytes == 0);
  TERRACE_CHECK(request.timeout > absl::ZeroDuration());
  auto owned = std::make_unique<Transfer>();
  Transfer* const transfer = owned.get();
  transfer->request = request;
  transfer->order = next_order_++;
  transfer->enqueued = clock_.Now();
  const bool is_new =
      transfers_.try_emplace(request.tag, std::move(owned)).second;
  TERRACE_CHECK(is_new);  // the tag is unique among pending transfers
  link_->OnClass(transfer->enqueued, request.io_class);
  expiries_.Add(*transfer);
  const int64_t piece_limit = link_->piece_bytes();
  schedule_.Add(transfer, piece_limit);
  // What does not fit waits for a result; a turn before it would only cost.
  const int64_t size_bytes = transfer->NextPieceBytes(piece_limit);
  if (HasSlot() &&
      link_->MayTake({request.direction, request.io_class, size_bytes})) {
    changed_ = true;
  }
}

Transfer* IoQueue::Find(uint64_t tag) const {
  const auto it = transfers_.find(tag);
  return it == transfers_.end() ? nullptr : it->second.get();
}

bool IoQueue::Cancel(uint64_t tag) {
  Transfer* const transfer = Find(tag);
  if (transfer == nullptr) return false;
  // The first of error, expiry and cancel decides how it ends.
  if (!transfer->stopped()) transfer->cancelled = true;
  DropUnissued(transfer);
  Settle(transfer);
  changed_ = true;  // there may be room now
  return true;
}

void IoQueue::Promote(uint64_t tag, IoClass io_class) {
  Transfer* const transfer = Find(tag);
  if (transfer == nullptr || io_class >= transfer->request.io_class) return;
  const bool was_waiting = schedule_.Remove(*transfer);
  transfer->request.io_class = io_class;
  link_->OnClass(clock_.Now(), io_class);
  if (was_waiting) schedule_.Add(transfer, link_->piece_bytes());
  changed_ = true;
}

void IoQueue::Turn(std::vector<Completion>* completions) {
  changed_ = false;
  if (transfers_.empty() && ended_.empty()) return link_->Rest();
  const absl::Time now = clock_.Now();
  expiries_.Look(now);
  CheckExpiries(now);
  SubmitStaged(now);
  if (!staged_.empty()) {
    link_->Rest();
  } else {
    if (StageAll(now) != Staged::kWaits) link_->Rest();
    SubmitStaged(now);
  }
  std::move(ended_.begin(), ended_.end(), std::back_inserter(*completions));
  ended_.clear();
}

absl::Time IoQueue::NextEvent() const {
  if (changed_ || !ended_.empty()) return clock_.Now();
  absl::Time next = std::min(expiries_.NextEvent(), link_->NextEvent());
  if (!staged_.empty()) next = std::min(next, engine_full_until_);
  if (!waiting_.empty()) {
    const auto& [due, slot] = *waiting_.begin();
    // Without room only a result lets it go on.
    if (HasSlot() && link_->MayTake(AskFor(pieces_[slot]))) {
      next = std::min(next, std::max(due, absl::UnixEpoch()));
    }
  }
  return next;
}

IoPathStats IoQueue::stats() const {
  IoPathStats stats = meter_.stats(clock_.Now());
  stats.in_flight_limit_bytes = link_->limit_bytes();
  return stats;
}

void IoQueue::OnResult(const IoResult& result) {
  const absl::Time now = clock_.Now();
  const int slot = pieces_.Answer(result, now);
  const Piece& piece = pieces_[slot];
  Transfer* const transfer = piece.transfer;
  const bool has_more =
      !waiting_.empty() || !staged_.empty() || !schedule_.empty();
  link_->OnAnswer(now, std::max<int64_t>(result.result, 0),
                  piece.request.direction == IoDirection::kRead, has_more);
  meter_.OnAnswer(piece.request, result.result, piece.quarantined, now);
  if (!piece.quarantined) Leave(piece.request);
  Judge(slot, result.result);
  Settle(transfer);
}

void IoQueue::Judge(int slot, int64_t result) {
  const Piece& piece = pieces_[slot];
  if (result == piece.request.size_bytes) {
    pieces_.Drop(slot);
  } else if (result > 0 && piece.transfer->stopped()) {
    piece.transfer->has_drops = true;
    pieces_.Drop(slot);
  } else if (const absl::Status failure = engine_.failure(); !failure.ok()) {
    Retry(slot, 0, EngineError(name_, piece.request, failure));
  } else {
    const PieceOutcome outcome =
        OutcomeOf(piece.request, result, name_, options_);
    if (outcome.moved_bytes > 0) {
      Continue(slot, outcome.moved_bytes);
    } else {
      Retry(slot, outcome.retries, outcome.error);
    }
  }
}

void IoQueue::Continue(int slot, int64_t moved_bytes) {
  IoRequest& request = pieces_[slot].request;
  request.data += moved_bytes;
  request.offset += moved_bytes;
  request.size_bytes -= moved_bytes;
  meter_.OnContinuation();
  waiting_.emplace(absl::InfinitePast(), slot);
  changed_ = true;
}

// The transfer fails with `error` when the piece was retried so often.
void IoQueue::Retry(int slot, int limit, const absl::Status& error) {
  Piece& piece = pieces_[slot];
  Transfer* const transfer = piece.transfer;
  if (!transfer->stopped() && piece.attempts < limit) {
    waiting_.emplace(clock_.Now() + RetryPause(piece.attempts), slot);
    ++piece.attempts;
    meter_.OnRetry();
    return;
  }
  transfer->has_drops = true;
  if (transfer->first_error.ok()) transfer->first_error = error;
  DropUnissued(transfer);
  pieces_.Drop(slot);
}

void IoQueue::DropUnissued(Transfer* transfer) {
  if (!transfer->all_issued()) {
    schedule_.Remove(*transfer);
    transfer->issued_bytes = transfer->request.size_bytes;
    transfer->has_drops = true;
  }
  const auto is_its = [&](int slot) {
    return pieces_[slot].transfer == transfer;
  };
  std::erase_if(waiting_, [&](const auto& waiting) {
    if (!is_its(waiting.second)) return false;
    pieces_.Drop(waiting.second);
    transfer->has_drops = true;
    return true;
  });
  std::erase_if(staged_, [&](int slot) {
    if (!is_its(slot)) return false;
    Leave(pieces_[slot].request);
    pieces_.Drop(slot);
    transfer->has_drops = true;
    return true;
  });
  if (transfer->in_flight_pieces > 0) Withdraw(transfer);
}

// What only waits in the engine has not begun.
void IoQueue::Withdraw(Transfer* transfer) {
  for (int slot = 0; slot < pieces_.size(); ++slot) {
    const Piece& piece = pieces_[slot];
    if (piece.transfer != transfer || piece.state != PieceState::kInFlight ||
        piece.quarantined || !engine_.Withdraw(piece.request.tag)) {
      continue;
    }
    meter_.OnWithdrawn(piece.request, clock_.Now());
    Leave(piece.request);
    pieces_.TakeBack(slot);
    pieces_.Drop(slot);
    transfer->has_drops = true;
  }
}

// Ends the transfer if nothing of it is left to do or to wait for.
void IoQueue::Settle(Transfer* transfer) {
  if (transfer->live_pieces == 0 && transfer->all_issued()) Finish(transfer);
}

void IoQueue::Finish(Transfer* transfer) {
  const IoTransfer& request = transfer->request;
  Completion completion{path_, request.tag, StatusOf(*transfer), false,
                        transfer->expired};
  if (completion.status.ok() && transfer->has_drops) {
    completion.status = LateError(*transfer);
  }
  expiries_.Remove(*transfer);
  ended_.push_back(std::move(completion));
  transfers_.erase(request.tag);
}

absl::Status IoQueue::StatusOf(const Transfer& transfer) const {
  if (transfer.cancelled) {
    return absl::CancelledError(
        absl::StrCat("cancelled: ", name_, ", offset ", transfer.request.offset,
                     ", ", transfer.request.size_bytes, " bytes"));
  }
  return transfer.first_error;
}

// What did not answer, for how long, and how much waits for it.
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
          ", ", meter_.in_flight_bytes(), " bytes in flight"));
}

// Never falls while the transfer is pending.
absl::Time IoQueue::ExpiryOf(const Transfer& transfer) const {
  return expiries_.ExpiryOf(transfer, pieces_.SilentSince(transfer));
}

void IoQueue::CheckExpiries(absl::Time now) {
  while (Transfer* const transfer = expiries_.TakeDue(now)) {
    const absl::Time expiry = ExpiryOf(*transfer);
    if (expiry > now) {
      expiries_.LookAt(expiry, *transfer);
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
  for (Piece& piece : pieces_.pieces()) {
    if (piece.transfer != transfer) continue;
    // What the kernel may never give back does not use up the limit.
    piece.quarantined = true;
    meter_.OnQuarantine(piece.request, now);
    Leave(piece.request);
  }
  ended_.push_back(
      {path_, transfer->request.tag, LateError(*transfer), true, false});
}

// Late pieces have places with the engine too, and no other path's.
bool IoQueue::HasSlot() const {
  return pieces_.in_flight() + static_cast<int>(staged_.size()) < slots_;
}

void IoQueue::Stage(int slot) {
  pieces_[slot].state = PieceState::kStaged;
  staged_.push_back(slot);
}

void IoQueue::Leave(const IoRequest& request) {
  link_->Give(request.direction, request.size_bytes);
}

// Where a piece that is due again waits, nothing new takes its room, no demand
// either.
IoQueue::Staged IoQueue::StageAll(absl::Time now) {
  const Staged retries = StageRetries(now);
  return retries == Staged::kAll ? StageNew() : retries;
}

IoQueue::Staged IoQueue::StageRetries(absl::Time now) {
  while (!waiting_.empty() && waiting_.begin()->first <= now) {
    const int slot = waiting_.begin()->second;
    if (!HasSlot()) return Staged::kLacksSlot;
    if (!link_->Take(AskFor(pieces_[slot]))) return Staged::kWaits;
    waiting_.erase(waiting_.begin());
    Stage(slot);
  }
  return Staged::kAll;
}

IoQueue::Staged IoQueue::StageNew() {
  const int64_t piece_limit = link_->piece_bytes();
  while (Transfer* const transfer = schedule_.Next(piece_limit)) {
    const IoTransfer& request = transfer->request;
    const int64_t size_bytes = transfer->NextPieceBytes(piece_limit);
    if (!HasSlot()) return Staged::kLacksSlot;
    // What is waited for waits for room only. Where both directions wait, the
    // deficits decide.
    const bool leaves_half = !IsAwaited(request.io_class) &&
                             !schedule_.HasFirstOfOther(request.direction);
    // It goes as what waits behind it, which others' pieces are not to pass.
    if (!link_->Take({request.direction, schedule_.MostUrgent(), size_bytes,
                      leaves_half})) {
      return Staged::kWaits;
    }
    schedule_.Charge(size_bytes);
    Stage(pieces_.Add(transfer, size_bytes));
    if (transfer->all_issued()) schedule_.Remove(*transfer);
  }
  return Staged::kAll;
}

void IoQueue::SubmitStaged(absl::Time now) {
  if (staged_.empty()) return;
  std::vector<IoRequest> requests;
  requests.reserve(staged_.size());
  for (const int slot : staged_) requests.push_back(pieces_.Tag(slot));
  const int taken = engine_.Submit(requests);
  TERRACE_CHECK(taken >= 0 && taken <= static_cast<int>(staged_.size()));
  for (int i = 0; i < taken; ++i) {
    pieces_.Issue(staged_[i], now);
    meter_.OnIssue(pieces_[staged_[i]].request, now);
  }
  staged_.erase(staged_.begin(), staged_.begin() + taken);
  // Asked again then at the latest: nothing else may ever wake us.
  if (!staged_.empty()) engine_full_until_ = now + kEngineFullPause;
}

}  // namespace terrace
