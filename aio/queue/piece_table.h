// The pieces of a path's transfers, in slots that are used again, and the tags
// by which the engine names them.
//
// A tag is a path, how often the slot was issued, and the slot: 8 + 24 + 32
// bits, so that a result of an earlier piece is never taken for one of this.
//
// Transfers are the caller's. One thread at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/time/time.h"
#include "aio/engine.h"
#include "aio/queue/transfer.h"

namespace terrace {

enum class PieceState : uint8_t { kFree, kStaged, kInFlight, kWaiting };

struct Piece {
  IoRequest request;  // what is left of it
  Transfer* transfer = nullptr;
  PieceState state = PieceState::kFree;
  bool quarantined = false;
  uint32_t generation = 0;
  absl::Time issued;
  // When it was issued, or a piece issued no later was answered.
  absl::Time waits_since;
  int attempts = 0;  // retries that moved nothing
};

class PieceTable {
 public:
  static constexpr int kMaxPaths = 128;
  // The path whose piece an engine's tag names.
  static int PathOf(uint64_t tag) { return static_cast<int>(tag >> 56); }

  // `file` is the engine's.
  PieceTable(int path, int file);
  // Checks that nothing is in flight.
  ~PieceTable();
  PieceTable(const PieceTable&) = delete;
  PieceTable& operator=(const PieceTable&) = delete;

  // The next piece of the transfer, which counts as issued; its slot.
  int Add(Transfer* transfer, int64_t size_bytes);
  void Drop(int slot);

  Piece& operator[](int slot) { return pieces_[slot]; }
  const Piece& operator[](int slot) const { return pieces_[slot]; }
  std::vector<Piece>& pieces() { return pieces_; }
  int size() const { return static_cast<int>(pieces_.size()); }

  // The request as the engine is to get it now, with a tag of its own.
  const IoRequest& Tag(int slot);
  // The engine has it.
  void Issue(int slot, absl::Time now);
  // The engine gave it back before it began.
  void TakeBack(int slot);
  // The slot of the piece that this answers, which is in flight no longer.
  // Checks that it was, and that it has not moved more than was asked.
  int Answer(const IoResult& result, absl::Time now);

  // With the engine, late ones included.
  int in_flight() const { return in_flight_; }

  // Since when the device has left the transfer unanswered. What is not in
  // flight waits for the device's next answer, whosever it is.
  absl::Time SilentSince(const Transfer& transfer) const;

 private:
  uint64_t TagOf(int slot) const;

  const int path_;
  const int file_;
  std::vector<Piece> pieces_;
  std::vector<int> free_slots_;
  int in_flight_ = 0;
  absl::Time last_answer_ = absl::InfinitePast();
};

}  // namespace terrace
