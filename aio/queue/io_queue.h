// One disk path: everything that decides. Cuts transfers into equal pieces,
// keeps a limit of bytes in flight, serves four classes, continues short
// transfers, retries, and turns any number of engine results into exactly one
// Completion. What each of these means is with the parts:
//
//   ClassSchedule  whose next piece goes        PieceTable   the pieces
//   LinkShare      how many bytes, what pieces  Expiries     what is late
//   PieceOutcome   what a result means
//
// Owned by IoPaths, which routes results here; one thread at a time. Never
// blocks.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "aio/engine.h"
#include "aio/io_transfer.h"
#include "aio/queue/class_schedule.h"
#include "aio/queue/expiries.h"
#include "aio/queue/link_share.h"
#include "aio/queue/path_meter.h"
#include "aio/queue/piece_table.h"
#include "aio/queue/transfer.h"
#include "base/clock.h"

namespace terrace {

class IoQueue {
 public:
  // `engine` and `clock` must outlive the queue; `file` is the engine's.
  // `join`: to the link that others share; null: it has one of its own.
  IoQueue(int path, std::string name, int file, const IoQueueOptions& options,
          const JoinLink& join, IoEngine& engine, Clock& clock);
  IoQueue(const IoQueue&) = delete;
  IoQueue& operator=(const IoQueue&) = delete;

  // As IoPaths's.
  void Enqueue(const IoTransfer& transfer);
  bool Cancel(uint64_t tag);
  void Promote(uint64_t tag, IoClass io_class);

  // A result whose tag PieceTable::PathOf routes here.
  void OnResult(const IoResult& result);

  // Expires transfers, refills what is in flight, appends what ended.
  void Turn(std::vector<Completion>* completions);

  // What is in flight leaves the link to others. The last call.
  void LeaveLink() { link_.reset(); }

  absl::Time NextEvent() const;
  int64_t pending() const { return static_cast<int64_t>(transfers_.size()); }
  IoPathStats stats() const;

 private:
  Transfer* Find(uint64_t tag) const;  // null: there is none
  void DropUnissued(Transfer* transfer);
  void Withdraw(Transfer* transfer);
  void Settle(Transfer* transfer);
  void Finish(Transfer* transfer);

  void Judge(int slot, int64_t result);
  void Continue(int slot, int64_t moved_bytes);
  void Retry(int slot, int limit, const absl::Status& error);

  absl::Time ExpiryOf(const Transfer& transfer) const;
  void CheckExpiries(absl::Time now);
  void Expire(Transfer* transfer);
  absl::Status StatusOf(const Transfer& transfer) const;
  absl::Status LateError(const Transfer& transfer) const;

  bool HasSlot() const;
  enum class Staged : uint8_t {
    kAll,
    kWaits,     // for the link
    kLacksSlot  // of the engine
  };
  Staged StageAll(absl::Time now);
  Staged StageRetries(absl::Time now);
  Staged StageNew();
  void Stage(int slot);
  void Leave(const IoRequest& request);
  void SubmitStaged(absl::Time now);

  const int path_;
  const std::string name_;
  const int file_;
  const IoQueueOptions options_;
  const int slots_;  // of the engine, for this path
  IoEngine& engine_;
  Clock& clock_;

  std::unordered_map<uint64_t, std::unique_ptr<Transfer>> transfers_;  // by tag
  int64_t next_order_ = 0;
  ClassSchedule schedule_;  // of what is not issued
  Expiries expiries_;

  PieceTable pieces_;
  std::vector<int> staged_;                 // allotted, not yet taken
  std::multimap<absl::Time, int> waiting_;  // continuations, retries
  absl::Time engine_full_until_ = absl::InfinitePast();
  std::unique_ptr<LinkShare> link_;  // with what is staged and in flight
  PathMeter meter_;

  bool changed_ = false;  // since the last Turn
  std::vector<Completion> ended_;
};

}  // namespace terrace
