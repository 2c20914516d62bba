// The one owner of all motion. It reads messages, admits groups, chooses who
// leaves, submits and reaps transfers and publishes what is ready. It hashes,
// copies and computes nothing: that is the executor's.
//
// RunOnce() is one deterministic step: it never blocks, and all state below
// is touched by nobody else. In production a thread calls it; in a test the
// test does.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "aio/io_group.h"
#include "policies/eviction.h"
#include "policies/placement.h"
#include "prefetch/access_trace.h"
#include "runtime/base/clock.h"
#include "runtime/base/executor.h"
#include "runtime/disk_paths.h"
#include "runtime/messages/inbox.h"
#include "runtime/residency.h"
#include "runtime/transcript.h"
#include "runtime/wanted_tensors.h"
#include "tiers/disk/disk_file.h"
#include "tiers/extent_allocator.h"

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
  ~Mover();

  Inbox& inbox() { return *inbox_; }
  std::shared_ptr<Inbox> shared_inbox() { return inbox_; }

  // One step; returns the time of its next event: now, when there is more to
  // do at once; InfiniteFuture, when only a message or a completion can bring
  // more.
  absl::Time RunOnce();
  // Sleeps until a message, a completion, or `deadline`.
  void Wait(absl::Time deadline) { io_->Wait(deadline); }

  bool closed() const { return closed_; }
  // Closed past its deadline: transfers may still write into the arena, so it
  // must be leaked.
  bool abandoned() const { return abandoned_; }
  // Once the inbox refuses messages: what was true at the end. Thread-safe.
  const Stats& final_stats() const { return final_stats_; }

  const ResidencyTable& table() const { return table_; }
  // The table's invariants, and that the extents add up to the budget used.
  absl::Status CheckInvariants() const;

 private:
  struct Window {
    Extent range;
    int64_t stride = 0;                // bytes of a slot, header included
    std::vector<TensorEntry*> owners;  // per slot; null: free
    std::vector<bool> quarantined;     // per slot: a late read owns it
    bool closing = false;              // freed when the last slot is empty
    bool open = false;
  };

  struct Group {
    uint64_t id = 0;
    uint64_t tag = 0;
    std::vector<Want> wants;
    std::vector<bool> held;  // per want, once admitted
    Time deadline;
    int missing = 0;  // copies that are not valid yet, once admitted
    Time at_head;     // when it became the head of its queue
    Time admitted;
    bool headed = false;
    bool waited_for_write = false;
    bool fetched = false;
    absl::Status failure;
  };

  struct Queue {
    int64_t id = -1;
    int window = kNoWindow;
    std::shared_ptr<QueuePort> port;
    std::map<uint64_t, Group> waiting;  // by id, which is first in first out
    std::set<std::pair<absl::Time, uint64_t>> deadlines;  // of those waiting
    int admitted = 0;                                     // of its groups
    std::vector<Ready> ready;                             // until published
    AccessTrace trace;
    bool step_open = false;
    int64_t step = 0;
    absl::Status first_error;  // of the open step
    int held_pins = 0;
    bool blocked_by_own_pins = false;
    absl::Status blocked_also;  // then: of a slot that failed
    bool closed = false;
  };

  struct PinRecord {
    TensorEntry* entry = nullptr;
    int64_t queue = -1;
    Access access = Access::kRead;
    bool was_dirty = false;  // before the pin
  };

  // What a completion belongs to.
  struct TransferRecord {
    TensorEntry* entry = nullptr;
    IoDirection direction = IoDirection::kRead;
    IoClass io_class = IoClass::kDemand;
    uint64_t generation = 0;  // read, or written
    int path = -1;
    Extent place;          // there
    int64_t failures = 0;  // of the path's writes, when one was begun
    // Where a read goes: outlives the entry's own copy when it times out.
    Extent extent;
    int window = kNoWindow;
    int slot = -1;
  };

  // A registration that waits for a file to grow.
  struct PendingRegister {
    RegisterRequest message;
    TensorEntry* entry = nullptr;
    int path = -1;              // the file's
    std::vector<bool> refused;  // per path: not asked again
    absl::Status refusal;       // of the last of those, with what others said
  };

  struct PendingUnregister {
    UnregisterRequest message;     // its reply is null once it is given
    TensorEntry* entry = nullptr;  // once nobody wants it
    uint64_t after = 0;  // pins that nobody took have ended by this message
  };

  struct PendingOpen {
    OpenRequest message;
    int64_t bytes = 0;
  };

  // What was counted of a path's transfers.
  struct PathMeter {
    IoPathStats last;   // when rates were last measured
    int64_t reads = 0;  // that ended since
    int64_t writes = 0;
    int64_t moves = 0;         // tensors that came from another path
    absl::Status write_error;  // of the last write that failed
  };

  // Whether a write-back has a place to go to, may have one soon, or has none.
  enum class Room : uint8_t { kFound, kWait, kNone };

  // How the search for a place ended; kWriteBack: nothing can be had before a
  // write-back ends.
  enum class Space : uint8_t { kFound, kWait, kWriteBack, kOwnPins, kFailed };

  struct PinnedBy {
    bool own = false;     // by the queue in question
    bool others = false;  // by others, or for a group that will be ready
  };

  // mover.cc: messages and the step.
  void Handle(Request& request);
  void Handle(Event& event);
  void Handle(RegisterRequest& message);
  void Handle(UnregisterRequest& message);
  void Handle(OpenRequest& message);
  void Handle(CloseQueueRequest& message);
  void Handle(PushRequest& message);
  void Handle(EndPinRequest& message);
  void Handle(StepRequest& message);
  void Handle(PrefetchRequest& message);
  void Handle(Sealed& sealed);
  void Handle(Checked& checked);
  void Handle(Grown& message);
  void Handle(Reclaimed& message);
  void Handle(Removed& message);
  void Handle(StatsRequest& message);
  void Handle(CloseRequest& message);
  void DropWaiting(Queue& queue);
  void PublishQueues();
  void NoteIfEnded(const Queue& queue);
  absl::Time NextDeadline() const;

  // mover_homes.cc: homes on the paths.
  void ServeRegisters();
  bool FindHome(PendingRegister& pending);
  int ChooseHome(const PendingRegister& pending) const;
  absl::Status NoPathIsUsable() const;
  void RefuseHome(PendingRegister& pending, const absl::Status& status);
  void ServeUnregisters();
  bool ServeUnregister(PendingUnregister& pending);
  bool BeginUnregister(PendingUnregister& pending);
  TensorEntry* FindRegistered(TensorId id);

  // mover_placement.cc: how fast the paths are, where write-backs go.
  void MeasurePaths();
  void NoteUnanswered(int64_t size_bytes);
  Room ChooseTarget(TensorEntry& entry);
  void AdoptTarget(TensorEntry& entry);
  void DropTarget(TensorEntry& entry);
  void WriteFailed(TensorEntry& entry, int path, const absl::Status& status);
  void GiveUpWrite(TensorEntry& entry);
  void RetryFailedWrites();
  absl::Status TakeUnsaid(int64_t queue);
  void CheckGrowth(absl::Time now);

  // mover_report.cc.
  PathState StateOf(int path) const;
  Stats MakeStats() const;
  void Note(TranscriptEvent event, const TransferRecord& transfer,
            absl::StatusCode code);
  void Note(const Queue& queue, const Ready& ready);

  // mover_close.cc: the end.
  void BeginClose();
  void FinishClose(absl::Time now);
  void End(bool quiet);
  static absl::Status Closed();
  std::string Holders() const;
  absl::Status Unwritten() const;

  // mover_admission.cc: groups, pins, prefetch.
  void AdmitGroups(Queue& queue, absl::Time now);
  bool TryAdmit(Queue& queue, Group& group, absl::Time now);
  void ExpireGroups(Queue& queue, absl::Time now);
  Space PlaceGroup(Queue& queue, const Group& group, absl::Status* failure);
  static PinnedBy WhoPins(const TensorEntry& entry, int64_t queue);
  bool CanPin(const Want& want, TensorEntry& entry, Queue& queue, Group& group);
  void Hold(Queue& queue, const Want& want, TensorEntry& entry, Group& group);
  void CopyBecameValid(TensorEntry& entry);
  void FailWaiters(TensorEntry& entry, const absl::Status& status);
  void FinishGroup(Queue& queue, Group& group);
  void FailGroup(Queue& queue, Group& group, absl::Status status);
  void AddReady(Queue& queue, Ready ready);
  void EraseWaiting(Queue& queue, uint64_t group);
  void EraseAdmitted(Queue& queue, uint64_t group);
  void ReleaseHolds(Group& group);
  void PrefetchFromTrace(Queue& queue);
  void EndPin(const PinRecord& pin, PinEnd end);

  // mover_space.cc: windows, residents, eviction.
  Space FindSpace(Queue& queue, TensorEntry& entry, absl::Status* failure);
  Space FindSlot(Queue& queue, TensorEntry& entry, bool prefetch,
                 absl::Status* failure);
  bool TakeResidentRoom(TensorEntry& entry);
  void MakeRoom(Queue& queue, const TensorEntry& newcomer);
  void TakeSlot(int window, int slot, TensorEntry& entry);
  void DropHostCopy(TensorEntry& entry);
  void EraseResident(TensorEntry& entry);
  void SetLeaving(TensorEntry& entry, bool leaving);
  void Evict(TensorEntry& entry);
  void ServeOpens(absl::Time now);
  void RefuseOpen(const PendingOpen& open);
  absl::StatusOr<Extent> MakeWindowRoom(int64_t bytes, bool* hope);
  bool HasRoomWithoutWindows(int64_t bytes) const;
  int NewWindow();
  void CloseEmptyWindows();
  std::vector<EvictionCandidate> Evictable(int64_t limit);
  int64_t NextUse(const TensorEntry& entry) const;

  // mover_transfers.cc: reads, hashes, writes and their completions.
  void StartRead(TensorEntry& entry, IoClass io_class);
  void StartVerify(TensorEntry& entry);
  void StartWriteBacks();
  bool StartHash(TensorEntry& entry);
  void StartWrite(TensorEntry& entry);
  void OnCompletion(const Completion& completion);
  void OnRead(TransferRecord record, const Completion& completion);
  void OnWrite(TransferRecord record, const Completion& completion);
  void LoseTensor(TensorEntry& entry, const absl::Status& status);
  void Report(int64_t queue, const absl::Status& status);

  Queue* FindQueue(int64_t id);
  Group* FindAdmitted(uint64_t id);

  Clock& clock_;
  Executor& executor_;
  const absl::Span<std::byte> arena_;
  std::unique_ptr<IoGroup> io_;
  Placement placement_;
  std::vector<PathMeter> meters_;  // per path
  std::unique_ptr<EvictionPolicy> eviction_;
  const bool prefetch_enabled_;
  const absl::Duration io_timeout_;
  Transcript* const transcript_;
  std::shared_ptr<Inbox> inbox_;
  DiskPaths paths_;

  ResidencyTable table_;
  ExtentAllocator space_;  // of the arena
  int64_t peak_bytes_ = 0;
  int64_t quarantined_bytes_ = 0;  // room outside windows, of late reads
  std::vector<Window> windows_;
  std::vector<int> closing_windows_;  // waiting for their slots
  std::vector<int> free_windows_;     // not open
  std::unordered_map<int64_t, std::unique_ptr<Queue>> queues_;
  std::vector<Queue*> open_queues_;    // all but the closed ones
  std::vector<int64_t> ended_queues_;  // closed, without pins or fetches
  int64_t next_queue_ = 0;
  std::unordered_map<uint64_t, std::pair<int64_t, Group>> admitted_;
  WantedTensors wanted_;  // by groups of open queues
  uint64_t next_group_ = 1;
  std::unordered_map<uint64_t, PinRecord> pins_;
  uint64_t next_token_ = 1;
  std::map<uint64_t, TransferRecord> transfers_;  // first begun, first
  uint64_t next_transfer_ = 1;
  std::deque<PendingOpen> opens_;
  std::vector<PendingRegister> registers_;  // in the order they came
  std::vector<PendingUnregister> unregisters_;
  std::vector<TensorEntry*> failed_writes_;  // those with a write_error
  // To be written back: of windows, and residents on their way out.
  std::deque<TensorEntry*> dirty_;
  std::vector<TensorEntry*> residents_;
  size_t resident_hand_ = 0;    // where the next sample of residents starts
  int64_t resident_bytes_ = 0;  // of those
  int leaving_ = 0;             // of those: written back, then dropped
  int hashing_ = 0;             // executor tasks under way
  uint64_t processed_ = 0;
  std::vector<Completion> completions_;
  std::deque<Message> messages_;

  absl::Status first_error_;
  int64_t demand_reads_ = 0;
  int64_t prefetch_reads_ = 0;
  int64_t prefetch_hits_ = 0;
  int64_t hits_ = 0;
  int64_t evictions_ = 0;
  bool closing_ = false;
  bool closed_ = false;
  bool abandoned_ = false;
  std::vector<CloseRequest> closes_;  // not answered yet
  uint64_t close_after_ = 0;          // not before this message
  Stats final_stats_;
};

}  // namespace terrace
