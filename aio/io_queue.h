// One disk path: everything that decides. Cuts transfers into equal pieces,
// keeps a window of bytes in flight, serves three classes by deficit round
// robin and who is due first within each, continues short transfers, retries,
// and turns any number of engine results into exactly one Completion. Owned
// by IoGroup, which routes results here; one thread at a time. Never blocks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "aio/engine.h"
#include "aio/io_group.h"
#include "aio/io_window.h"
#include "runtime/base/clock.h"
#include "runtime/base/watch.h"

namespace terrace {

class IoQueue {
 public:
  static constexpr int kMaxPaths = 128;

  // The path whose piece an engine's tag names.
  static int PathOf(uint64_t tag) { return static_cast<int>(tag >> 56); }

  // `engine` and `clock` must outlive the queue; `file` is the engine's.
  IoQueue(int path, std::string name, int file, const IoQueueOptions& options,
          IoEngine& engine, Clock& clock);
  ~IoQueue();  // checks that nothing is in flight
  IoQueue(const IoQueue&) = delete;
  IoQueue& operator=(const IoQueue&) = delete;

  // As IoGroup's.
  void Enqueue(const IoTransfer& transfer);
  bool Cancel(uint64_t tag);
  void Promote(uint64_t tag, IoClass io_class);

  // A result whose tag PathOf routes here.
  void OnResult(const IoResult& result);

  // Expires transfers, fills the window, appends what ended.
  void Turn(std::vector<Completion>* completions);

  absl::Time NextEvent() const;
  int64_t pending() const { return static_cast<int64_t>(transfers_.size()); }
  IoPathStats stats() const;

 private:
  // Of offsets, sizes and addresses; what direct I/O asks for at most.
  static constexpr int64_t kAlignment = 4096;
  static constexpr int kClasses = 3;  // IoClass

  struct Transfer {
    IoTransfer request;
    int64_t order = 0;  // of arrival
    absl::Time enqueued;
    // Its place in expiries_: it cannot expire earlier.
    absl::Time check_at = absl::InfiniteFuture();
    int64_t piece_limit = 0;  // of the window, that piece_bytes is of
    int64_t piece_bytes = 0;  // of each piece but perhaps the last
    int64_t issued_bytes = 0;
    int live_pieces = 0;       // staged, in flight or waiting for a retry
    int in_flight_pieces = 0;  // the kernel has the buffer
    absl::Status first_error;  // of a result
    bool cancelled = false;
    bool expired = false;    // its DeadlineExceeded was delivered
    bool has_drops = false;  // bytes that never moved
    bool stopped() const { return cancelled || expired || !first_error.ok(); }
  };
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

  // Who goes first within a class: who is due first, were he alone, then the
  // first to arrive.
  using Urgency = std::pair<absl::Time, int64_t>;
  static Urgency UrgencyOf(const Transfer& transfer) {
    return {transfer.enqueued + transfer.request.timeout, transfer.order};
  }

  static uint64_t MakeTag(int path, uint32_t generation, int slot);
  static int SlotOf(uint64_t tag);

  std::map<Urgency, Transfer*>& Unissued(IoClass io_class) {
    return unissued_[static_cast<int>(io_class)];
  }
  void Line(Transfer* transfer);
  int64_t NextPieceBytes(Transfer* transfer) const;
  int NewPiece(Transfer* transfer);
  void DropPiece(int slot);
  void DropUnissued(Transfer* transfer);
  void Settle(Transfer* transfer);

  void ContinuePiece(int slot, int64_t moved_bytes);
  void RetryPiece(int slot, int limit, const absl::Status& error);
  void FailTransfer(Transfer* transfer, const absl::Status& error);
  void OnError(int slot, int error);

  void NoteAnswer(const Piece& answered, int64_t moved_bytes);
  void NoteInFlight(IoDirection direction, int change, absl::Time now);
  absl::Time ExpiryOf(const Transfer& transfer) const;
  void CheckExpiries(absl::Time now);
  void Expire(Transfer* transfer);
  void StageRetries(absl::Time now);
  void StageNew();
  Transfer* PickByDeficit();
  bool WindowHasRoom(int64_t size_bytes) const;
  bool LeavesRoom(const Transfer& transfer, int64_t size_bytes) const;
  void LeaveWindow(const IoRequest& request);
  void Stage(int slot);
  void SubmitStaged(absl::Time now);
  void Finish(Transfer* transfer);
  absl::Status StatusOf(const Transfer& transfer) const;
  absl::Status LateError(const Transfer& transfer) const;

  const int path_;
  const std::string name_;
  const int file_;
  const IoQueueOptions options_;
  IoEngine& engine_;
  Clock& clock_;

  std::unordered_map<uint64_t, std::unique_ptr<Transfer>> transfers_;  // by tag
  std::map<Urgency, Transfer*> unissued_[kClasses];
  // When to look whether the transfer has expired, and its tag.
  std::set<std::pair<absl::Time, uint64_t>> expiries_;
  absl::Time last_answer_ = absl::InfinitePast();  // of the device
  Watch watch_;  // by Turn: what nobody looked at is not late
  int64_t next_order_ = 0;

  std::vector<Piece> pieces_;
  std::vector<int> free_slots_;
  std::vector<int> staged_;                 // allotted, not yet taken
  std::multimap<absl::Time, int> waiting_;  // continuations, retries
  absl::Time engine_full_until_ = absl::InfinitePast();
  int in_flight_ = 0;
  struct Busy {
    int pieces = 0;  // in flight, not quarantined
    absl::Time since;
    absl::Duration before;
  };
  Busy busy_[2];      // reads, writes
  struct WindowUse {  // staged and in flight, not quarantined
    int64_t bytes = 0;
    int pieces = 0;
  };
  WindowUse window_use_[2];  // reads, writes

  IoWindow window_;
  int64_t deficit_bytes_[kClasses] = {};
  int least_weight_ = 1;
  int current_class_ = 0;

  bool changed_ = false;  // since the last Turn
  std::vector<Completion> ended_;
  IoPathStats stats_;
};

}  // namespace terrace
