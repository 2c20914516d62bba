#include "aio/io_queue.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "aio/io_error.h"
#include "runtime/base/check.h"

namespace terrace {
namespace {

// More only adds latency (the window is in bytes).
constexpr int kMaxWindowPieces = 64;
// Deficits of the class of the least weight grow by this, those of the others
// in proportion: small, so that shares are even over a few pieces.
constexpr int64_t kQuantumBytes = 256 << 10;
constexpr absl::Duration kEngineFullPause = absl::Microseconds(100);

}  // namespace

IoQueue::IoQueue(int path, std::string name, int file,
                 const IoQueueOptions& options, IoEngine& engine, Clock& clock)
    : path_(path),
      name_(std::move(name)),
      file_(file),
      options_(options),
      engine_(engine),
      clock_(clock),
      window_(options) {
  TERRACE_CHECK(path >= 0 && path < kMaxPaths);
  TERRACE_CHECK(options.window_bytes > 0 && options.piece_bytes >= kAlignment);
  TERRACE_CHECK(options.piece_bytes % kAlignment == 0);
  least_weight_ =
      *std::min_element(std::begin(options.weights), std::end(options.weights));
  TERRACE_CHECK(least_weight_ > 0);
}

IoQueue::~IoQueue() { TERRACE_CHECK(in_flight_ == 0); }

void IoQueue::Enqueue(const IoTransfer& request) {
  TERRACE_CHECK(request.data != nullptr && request.size_bytes > 0);
  TERRACE_CHECK(reinterpret_cast<intptr_t>(request.data) % kAlignment == 0);
  TERRACE_CHECK(request.offset >= 0 && request.offset % kAlignment == 0);
  TERRACE_CHECK(request.size_bytes % kAlignment == 0);
  TERRACE_CHECK(request.timeout > absl::ZeroDuration());
  auto owned = std::make_unique<Transfer>();
  Transfer* const transfer = owned.get();
  transfer->request = request;
  transfer->order = next_order_++;
  transfer->enqueued = clock_.Now();
  if (expiries_.empty()) watch_.Begin(transfer->enqueued);
  watch_.Expect(request.timeout);
  const bool is_new =
      transfers_.try_emplace(request.tag, std::move(owned)).second;
  TERRACE_CHECK(is_new);  // the tag is unique among pending transfers
  Line(transfer);
  transfer->check_at = transfer->enqueued + request.timeout;
  if (transfer->check_at < absl::InfiniteFuture()) {
    expiries_.emplace(transfer->check_at, request.tag);
  }
  // What does not fit waits for a result; a turn before it would only cost.
  if (WindowHasRoom(NextPieceBytes(transfer))) changed_ = true;
}

void IoQueue::Line(Transfer* transfer) {
  const IoClass io_class = transfer->request.io_class;
  auto& unissued = Unissued(io_class);
  if (unissued.empty() && io_class == IoClass::kDemand) {
    // A demand that comes out of silence goes next: it waits for the window
    // only, not for what is left of the other classes' turns.
    current_class_ = static_cast<int>(io_class);
    deficit_bytes_[current_class_] = NextPieceBytes(transfer);
  }
  unissued.emplace(UrgencyOf(*transfer), transfer);
}

bool IoQueue::Cancel(uint64_t tag) {
  const auto it = transfers_.find(tag);
  if (it == transfers_.end()) return false;
  Transfer* const transfer = it->second.get();
  // The first of error, expiry and cancel decides how it ends.
  if (!transfer->stopped()) transfer->cancelled = true;
  DropUnissued(transfer);
  Settle(transfer);
  changed_ = true;  // the window may have room
  return true;
}

void IoQueue::Promote(uint64_t tag, IoClass io_class) {
  const auto it = transfers_.find(tag);
  if (it == transfers_.end()) return;
  Transfer* const transfer = it->second.get();
  if (io_class >= transfer->request.io_class) return;
  const auto node =
      Unissued(transfer->request.io_class).extract(UrgencyOf(*transfer));
  transfer->request.io_class = io_class;
  if (!node.empty()) Line(transfer);
  changed_ = true;
}

void IoQueue::Turn(std::vector<Completion>* completions) {
  changed_ = false;
  if (transfers_.empty() && ended_.empty()) return;
  const absl::Time now = clock_.Now();
  watch_.Look(now);
  CheckExpiries(now);
  SubmitStaged(now);
  if (staged_.empty()) {
    StageRetries(now);
    StageNew();
    SubmitStaged(now);
  }
  std::move(ended_.begin(), ended_.end(), std::back_inserter(*completions));
  ended_.clear();
}

absl::Time IoQueue::NextEvent() const {
  if (changed_ || !ended_.empty()) return clock_.Now();
  absl::Time next = absl::InfiniteFuture();
  if (!expiries_.empty()) {
    next = std::min(expiries_.begin()->first, watch_.next_look());
  }
  if (!staged_.empty()) next = std::min(next, engine_full_until_);
  if (!waiting_.empty()) {
    const auto& [due, slot] = *waiting_.begin();
    // With a full window only a result lets it go on.
    if (WindowHasRoom(pieces_[slot].request.size_bytes)) {
      next = std::min(next, std::max(due, absl::UnixEpoch()));
    }
  }
  return next;
}

uint64_t IoQueue::MakeTag(int path, uint32_t generation, int slot) {
  return (static_cast<uint64_t>(path) << 56) |
         (static_cast<uint64_t>(generation & 0xffffff) << 32) |
         static_cast<uint64_t>(slot);
}

int IoQueue::SlotOf(uint64_t tag) { return static_cast<int>(tag & 0xffffffff); }

// Of equal pieces of what is left, none larger than the window would have it.
int64_t IoQueue::NextPieceBytes(Transfer* transfer) const {
  const int64_t left = transfer->request.size_bytes - transfer->issued_bytes;
  const int64_t limit = window_.piece_bytes();
  if (transfer->piece_limit != limit) {
    const int64_t count = (left + limit - 1) / limit;
    const int64_t blocks = left / kAlignment;
    transfer->piece_limit = limit;
    transfer->piece_bytes = (blocks + count - 1) / count * kAlignment;
  }
  return std::min(transfer->piece_bytes, left);
}

int IoQueue::NewPiece(Transfer* transfer) {
  if (free_slots_.empty()) {
    free_slots_.push_back(static_cast<int>(pieces_.size()));
    pieces_.emplace_back();
  }
  const int slot = free_slots_.back();
  free_slots_.pop_back();
  const IoTransfer& whole = transfer->request;
  Piece& piece = pieces_[slot];
  piece.transfer = transfer;
  piece.attempts = 0;
  piece.quarantined = false;
  piece.request.file = file_;
  piece.request.direction = whole.direction;
  piece.request.data = whole.data + transfer->issued_bytes;
  piece.request.offset = whole.offset + transfer->issued_bytes;
  piece.request.size_bytes = NextPieceBytes(transfer);
  transfer->issued_bytes += piece.request.size_bytes;
  ++transfer->live_pieces;
  return slot;
}

void IoQueue::DropPiece(int slot) {
  Piece& piece = pieces_[slot];
  TERRACE_CHECK(piece.state != PieceState::kInFlight);
  --piece.transfer->live_pieces;
  piece.transfer = nullptr;
  piece.state = PieceState::kFree;
  free_slots_.push_back(slot);
}

void IoQueue::DropUnissued(Transfer* transfer) {
  if (transfer->issued_bytes < transfer->request.size_bytes) {
    Unissued(transfer->request.io_class).erase(UrgencyOf(*transfer));
    transfer->issued_bytes = transfer->request.size_bytes;
    transfer->has_drops = true;
  }
  for (auto it = waiting_.begin(); it != waiting_.end();) {
    if (pieces_[it->second].transfer == transfer) {
      DropPiece(it->second);
      transfer->has_drops = true;
      it = waiting_.erase(it);
    } else {
      ++it;
    }
  }
  std::erase_if(staged_, [&](int slot) {
    if (pieces_[slot].transfer != transfer) return false;
    LeaveWindow(pieces_[slot].request);
    DropPiece(slot);
    transfer->has_drops = true;
    return true;
  });
}

// Ends the transfer if nothing of it is left to do or to wait for.
void IoQueue::Settle(Transfer* transfer) {
  if (transfer->live_pieces == 0 &&
      transfer->issued_bytes == transfer->request.size_bytes) {
    Finish(transfer);
  }
}

// The device answered: whoever was issued no earlier is waited for anew. What
// is issued later changes nothing, so that a request that was lost expires
// however busy the device is.
void IoQueue::NoteAnswer(const Piece& answered, int64_t moved_bytes) {
  last_answer_ = clock_.Now();
  const bool has_more = !waiting_.empty() || !staged_.empty() ||
                        std::any_of(std::begin(unissued_), std::end(unissued_),
                                    [](const auto& of) { return !of.empty(); });
  window_.OnAnswer(last_answer_, std::max<int64_t>(moved_bytes, 0),
                   answered.request.direction == IoDirection::kRead, has_more);
  for (Piece& piece : pieces_) {
    if (piece.state == PieceState::kInFlight &&
        piece.issued >= answered.issued) {
      piece.waits_since = last_answer_;
    }
  }
}

void IoQueue::NoteInFlight(IoDirection direction, int change, absl::Time now) {
  Busy& busy = busy_[direction == IoDirection::kRead ? 0 : 1];
  if (busy.pieces == 0) busy.since = now;
  busy.pieces += change;
  if (busy.pieces == 0) busy.before += now - busy.since;
}

IoPathStats IoQueue::stats() const {
  IoPathStats stats = stats_;
  stats.window_bytes = window_.bytes();
  const absl::Time now = clock_.Now();
  const auto busy = [now](const Busy& of) {
    return of.pieces == 0 ? of.before : of.before + (now - of.since);
  };
  stats.read_busy = busy(busy_[0]);
  stats.write_busy = busy(busy_[1]);
  return stats;
}

bool IoQueue::WindowHasRoom(int64_t size_bytes) const {
  const int pieces = window_use_[0].pieces + window_use_[1].pieces;
  if (pieces == 0) return true;  // a piece larger than the window
  return pieces < kMaxWindowPieces &&
         window_use_[0].bytes + window_use_[1].bytes + size_bytes <=
             window_.bytes();
}

// A device may serve both directions at once. So in a mixed load one that has
// the queue to itself for a moment leaves half of the window to the other,
// which would otherwise find it full. Where both wait, the deficits decide.
bool IoQueue::LeavesRoom(const Transfer& transfer, int64_t size_bytes) const {
  if (!window_.is_mixed()) return true;
  // It waits for the window only.
  if (transfer.request.io_class == IoClass::kDemand) return true;
  const IoDirection direction = transfer.request.direction;
  for (const auto& transfers : unissued_) {
    if (transfers.empty()) continue;
    const Transfer& head = *transfers.begin()->second;
    if (head.request.direction != direction) return true;
  }
  const WindowUse& use = window_use_[static_cast<int>(direction)];
  return use.pieces == 0 || (use.pieces < kMaxWindowPieces / 2 &&
                             use.bytes + size_bytes <= window_.bytes() / 2);
}

void IoQueue::LeaveWindow(const IoRequest& request) {
  WindowUse& use = window_use_[static_cast<int>(request.direction)];
  use.bytes -= request.size_bytes;
  --use.pieces;
}

void IoQueue::Stage(int slot) {
  Piece& piece = pieces_[slot];
  piece.state = PieceState::kStaged;
  WindowUse& use = window_use_[static_cast<int>(piece.request.direction)];
  use.bytes += piece.request.size_bytes;
  ++use.pieces;
  staged_.push_back(slot);
}

void IoQueue::StageRetries(absl::Time now) {
  while (!waiting_.empty() && waiting_.begin()->first <= now) {
    const int slot = waiting_.begin()->second;
    if (!WindowHasRoom(pieces_[slot].request.size_bytes)) return;
    waiting_.erase(waiting_.begin());
    Stage(slot);
  }
}

void IoQueue::StageNew() {
  while (Transfer* const transfer = PickByDeficit()) {
    const int64_t size_bytes = NextPieceBytes(transfer);
    if (!WindowHasRoom(size_bytes)) return;
    if (!LeavesRoom(*transfer, size_bytes)) return;
    deficit_bytes_[current_class_] -= size_bytes;
    Stage(NewPiece(transfer));
    if (transfer->issued_bytes == transfer->request.size_bytes) {
      Unissued(transfer->request.io_class).erase(UrgencyOf(*transfer));
    }
  }
}

// The transfer whose next piece is to go, null when all is issued. Changes
// only the turn, so that it may be asked again when the window has room.
IoQueue::Transfer* IoQueue::PickByDeficit() {
  if (std::all_of(std::begin(unissued_), std::end(unissued_),
                  [](const auto& transfers) { return transfers.empty(); })) {
    return nullptr;
  }
  while (true) {
    const auto& transfers = unissued_[current_class_];
    if (transfers.empty()) {
      deficit_bytes_[current_class_] = 0;  // silence saves up no share
    } else {
      Transfer* const head = transfers.begin()->second;
      if (deficit_bytes_[current_class_] >= NextPieceBytes(head)) return head;
    }
    current_class_ = (current_class_ + 1) % kClasses;
    deficit_bytes_[current_class_] +=
        options_.weights[current_class_] * kQuantumBytes / least_weight_;
  }
}

void IoQueue::SubmitStaged(absl::Time now) {
  if (staged_.empty()) return;
  std::vector<IoRequest> requests;
  requests.reserve(staged_.size());
  for (const int slot : staged_) {
    Piece& piece = pieces_[slot];
    ++piece.generation;
    piece.request.tag = MakeTag(path_, piece.generation, slot);
    requests.push_back(piece.request);
  }
  const int taken = engine_.Submit(requests);
  TERRACE_CHECK(taken >= 0 && taken <= static_cast<int>(staged_.size()));
  for (int i = 0; i < taken; ++i) {
    Piece& piece = pieces_[staged_[i]];
    piece.state = PieceState::kInFlight;
    piece.issued = now;
    piece.waits_since = now;
    NoteInFlight(piece.request.direction, +1, now);
    ++piece.transfer->in_flight_pieces;
    ++in_flight_;
    stats_.in_flight_bytes += piece.request.size_bytes;
    const bool is_read = piece.request.direction == IoDirection::kRead;
    ++(is_read ? stats_.requests_read : stats_.requests_written);
  }
  staged_.erase(staged_.begin(), staged_.begin() + taken);
  // Asked again then at the latest: nothing else may ever wake us.
  if (!staged_.empty()) engine_full_until_ = now + kEngineFullPause;
}

}  // namespace terrace
