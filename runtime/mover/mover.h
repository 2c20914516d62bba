// The one owner of all motion: its parts, and the order of a turn. It reads
// messages, admits groups, chooses what leaves, begins and reaps transfers and
// publishes what is ready. It hashes, copies and computes nothing: that is the
// executor's.
//
// RunOnce() is one deterministic turn: it never blocks, and nothing else
// touches the parts. In production a thread calls it; in a test the test does.
// Calls go down, results come up as values, nothing calls back.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "policies/eviction.h"
#include "prefetch/trace_planner.h"
#include "runtime/base/clock.h"
#include "runtime/base/executor.h"
#include "runtime/messages/inbox.h"
#include "runtime/motion/links.h"
#include "runtime/motion/resting_tiers.h"
#include "runtime/motion/transcript.h"
#include "runtime/motion/transfers.h"
#include "runtime/mover/admission.h"
#include "runtime/mover/closing.h"
#include "runtime/mover/customers.h"
#include "runtime/mover/prefetcher.h"
#include "runtime/mover/report.h"
#include "runtime/mover/window_opener.h"
#include "runtime/residency/registrar.h"
#include "runtime/residency/tier_residency.h"
#include "runtime/residency/write_back.h"
#include "runtime/residency/write_placement.h"
#include "runtime/tensor/pin_book.h"
#include "runtime/tensor/tensor_table.h"
#include "tiers/disk/disk_file.h"
#include "tiers/memory/dram_tier.h"

namespace terrace {

// What a mover is made from; a test replaces any of them. All referenced
// objects outlive the mover.
struct MoverParts {
  Clock* clock = nullptr;
  Executor* executor = nullptr;
  absl::Span<std::byte> arena;  // of the host budget's size
  std::unique_ptr<IoGroup> io;
  std::vector<std::unique_ptr<DiskFile>> disks;  // path k is io's path k
  // Path k's speed, as far as it is known before the job; empty: of none.
  std::vector<PathPrior> priors;
  // Path k's: grows and removes its file and what killed jobs left beside it,
  // one task after the other, and may hang in it; the tasks own what they use.
  // RunOnce never waits for one.
  std::vector<Executor*> background;
  std::unique_ptr<EvictionPolicy> eviction;
  bool prefetch = true;
  absl::Duration io_timeout = absl::Seconds(60);
  Transcript* transcript = nullptr;  // null: none is written
};

class Mover {
 public:
  explicit Mover(MoverParts parts);
  // The executor's tasks refer to the arena and to the inbox, never to the
  // mover; the caller drains the executor before it frees the arena.
  ~Mover();

  Inbox& inbox() { return *inbox_; }
  std::shared_ptr<Inbox> shared_inbox() { return inbox_; }

  // One turn; returns the time of its next event: now, when there is more to
  // do at once; InfiniteFuture, when only a message or a move's end can bring
  // more.
  absl::Time RunOnce();
  // Sleeps until a message, a move's end, or `deadline`.
  void Wait(absl::Time deadline) { links_.Wait(deadline); }

  bool closed() const { return closing_.ended(); }
  // Closed past its deadline or with pins held: the arena may still be used, so
  // it must be leaked.
  bool abandoned() const { return closing_.abandoned(); }
  // Once the inbox refuses messages: what was true at the end. Thread-safe.
  const Stats& final_stats() const { return closing_.final_stats(); }

  const TensorTable& table() const { return table_; }
  absl::Status CheckInvariants() const { return report().CheckInvariants(); }

 private:
  // What one turn has at hand.
  struct Turn {
    std::vector<Moved> moved;
    std::vector<Arrival> arrivals;
    std::vector<QueueError> errors;
    std::deque<Message> messages;
    uint64_t processed = 0;  // messages
  };

  // What a message means for the parts.
  void Hear(Request& request);
  void Hear(Event& event);
  void Open(OpenRequest& request);
  void CloseQueue(const CloseQueueRequest& request);
  void EndPin(const EndPinRequest& request);
  void ChangeStep(const StepRequest& request);
  void Close(CloseRequest& request);
  void OnSealed(const Sealed& event);
  void OnChecked(const Checked& event);

  void PollLinks();
  void HearMessages();
  // Everything that a runtime does which is not being closed. True: a
  // write-back was given up, so that a head may have its slot now.
  bool Serve(absl::Time now);
  void AdvanceClosing(absl::Time now);
  void HearArrivals();
  void Hear(const Arrival& arrival);
  void HearErrors();
  void Lose(Tensor& tensor, const absl::Status& why);
  Report report() const;

  Clock& clock_;
  std::shared_ptr<Inbox> inbox_;
  // Reservations outlive nothing that they are made from: tiers first, then
  // windows, then tensors, then transfers.
  DramTier dram_;
  Links links_;
  RestingTiers resting_;
  TracePlanner planner_;
  PinBook pins_;
  TierResidency residency_;
  TensorTable table_;
  Transfers transfers_;
  WritePlacement placement_;
  WriteBack write_back_;
  Registrar registrar_;
  Customers customers_;
  Admission admission_;
  Prefetcher prefetcher_;
  WindowOpener opener_;
  Closing closing_;
  Turn turn_;
  absl::Status first_error_;
};

}  // namespace terrace
