#include "aio/queue/piece_table.h"

#include <algorithm>

#include "base/check.h"

namespace terrace {

PieceTable::PieceTable(int path, int file) : path_(path), file_(file) {
  TERRACE_CHECK(path >= 0 && path < kMaxPaths);
}

PieceTable::~PieceTable() { TERRACE_CHECK(in_flight_ == 0); }

int PieceTable::Add(Transfer* transfer, int64_t size_bytes) {
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
  piece.request.size_bytes = size_bytes;
  transfer->issued_bytes += size_bytes;
  ++transfer->live_pieces;
  return slot;
}

void PieceTable::Drop(int slot) {
  Piece& piece = pieces_[slot];
  TERRACE_CHECK(piece.state != PieceState::kInFlight);
  --piece.transfer->live_pieces;
  piece.transfer = nullptr;
  piece.state = PieceState::kFree;
  free_slots_.push_back(slot);
}

uint64_t PieceTable::TagOf(int slot) const {
  return (static_cast<uint64_t>(path_) << 56) |
         (static_cast<uint64_t>(pieces_[slot].generation & 0xffffff) << 32) |
         static_cast<uint64_t>(slot);
}

const IoRequest& PieceTable::Tag(int slot) {
  Piece& piece = pieces_[slot];
  ++piece.generation;
  piece.request.tag = TagOf(slot);
  return piece.request;
}

void PieceTable::Issue(int slot, absl::Time now) {
  Piece& piece = pieces_[slot];
  piece.state = PieceState::kInFlight;
  piece.issued = now;
  piece.waits_since = now;
  ++piece.transfer->in_flight_pieces;
  ++in_flight_;
}

void PieceTable::TakeBack(int slot) {
  Piece& piece = pieces_[slot];
  TERRACE_CHECK(piece.state == PieceState::kInFlight);
  --in_flight_;
  --piece.transfer->in_flight_pieces;
  piece.state = PieceState::kWaiting;
}

// The device answered: whatever was issued no earlier is waited for anew. What
// is issued later changes nothing, so that a request that was lost expires
// however busy the device is.
int PieceTable::Answer(const IoResult& result, absl::Time now) {
  const auto slot = static_cast<int>(result.tag & 0xffffffff);
  TERRACE_CHECK(slot < static_cast<int>(pieces_.size()));
  Piece& answered = pieces_[slot];
  // Fails when an engine completes a request twice.
  TERRACE_CHECK(result.tag == TagOf(slot));
  TERRACE_CHECK(answered.state == PieceState::kInFlight);
  TERRACE_CHECK(result.result <= answered.request.size_bytes);
  last_answer_ = now;
  for (Piece& piece : pieces_) {
    if (piece.state == PieceState::kInFlight &&
        piece.issued >= answered.issued) {
      piece.waits_since = now;
    }
  }
  --in_flight_;
  --answered.transfer->in_flight_pieces;
  answered.state = PieceState::kWaiting;
  return slot;
}

absl::Time PieceTable::SilentSince(const Transfer& transfer) const {
  if (transfer.in_flight_pieces == 0) {
    return std::max(transfer.enqueued, last_answer_);
  }
  absl::Time since = absl::InfiniteFuture();
  for (const Piece& piece : pieces_) {
    if (piece.transfer == &transfer && piece.state == PieceState::kInFlight) {
      since = std::min(since, piece.waits_since);
    }
  }
  return since;
}

}  // namespace terrace
