// What a MemoryRuntime holds: tensors in pieces of memory, the groups that its
// queues ("lines" here) wait with, and the pins. It outlives the runtime as
// long as pins or queues do, and the memory goes with it.
//
// Thread-safe. A line is used by one thread at a time. In a forked child, where
// its lock may be held for ever, nothing but IsOwnProcess and Closed may be
// called, nor may it be destroyed; a pin's end does nothing there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "base/process.h"
#include "terrace/pin.h"
#include "terrace/request.h"
#include "terrace/stats.h"
#include "terrace/tensor.h"
#include "tiers/extent_allocator.h"
#include "tiers/memory/host_arena.h"

namespace terrace {

class MemoryStore final : public PinOwner,
                          public std::enable_shared_from_this<MemoryStore> {
 public:
  // All of its memory lies on `node`; -1: where Reserve prefers it.
  MemoryStore(Clock& clock, int node) : clock_(clock), node_(node) {}

  // As in terrace/runtime.h and terrace/memory_runtime.h; deadlines are by the
  // clock.
  absl::Status Reserve(int64_t size_bytes, int preferred_node);
  void ReleaseUnused();
  absl::StatusOr<TensorId> Register(const TensorSpec& spec);
  absl::Status Unregister(TensorId tensor);
  Stats GetStats() const;
  absl::Status Close();

  // As in terrace/request.h.
  absl::StatusOr<int64_t> OpenLine(int64_t slot_bytes, int slots);
  void CloseLine(int64_t line);
  absl::Status Push(int64_t line, absl::Span<const Want> wants, uint64_t tag,
                    absl::Time deadline);
  absl::StatusOr<Ready> Next(int64_t line, absl::Time deadline);
  void Wake(int64_t line);
  // As in terrace/byte_queue.h. A queue of bytes is a line without groups, and
  // one for each request, whose Next is Aborted where recalls have come.
  absl::StatusOr<int64_t> OpenRequest(int64_t queue);
  // At once, whoever waits; with a deadline once no request does.
  std::vector<uint64_t> TakeRecalls(int64_t queue);
  absl::StatusOr<std::vector<uint64_t>> AwaitRecalls(int64_t queue,
                                                     absl::Time deadline);
  absl::Status BeginStep(int64_t line, int64_t step);
  // Without a step: whichever is open.
  absl::Status EndStep(int64_t line, std::optional<int64_t> step);

  bool IsOwnProcess() const { return process_.IsCurrent(); }
  absl::Status Closed() const;
  void EndPin(uint64_t token, PinEnd end) override;

 private:
  struct Piece {
    std::unique_ptr<HostArena> arena;
    ExtentAllocator space;
  };

  struct Tensor {
    TensorSpec spec;
    Piece* piece = nullptr;
    Extent place;  // in it
    int pins = 0;
    bool write_pinned = false;  // by the one pin there is
    int wanted = 0;             // by groups that wait
    bool written = false;
    absl::Status loss;  // sticky DataLoss
  };

  struct Group {
    std::vector<Want> wants;
    uint64_t tag = 0;
    absl::Time deadline;
  };

  struct Line {
    int64_t slot_bytes = 0;
    int slots = 0;
    std::deque<Group> groups;
    std::optional<int64_t> step;    // that is open
    absl::Status first_error;       // of that
    bool woken = false;             // until a Next has said so
    int64_t queue = -1;             // of a request at a queue of bytes: that
    int waiting = 0;                // of a queue of bytes: its requests' Next
    std::vector<uint64_t> recalls;  // of that: until they are taken
  };

  struct PinRecord {
    int64_t tensor = -1;
    int64_t line = -1;
    Access access = Access::kRead;
    int64_t queue = -1;  // of bytes: whose it is
    bool recalled = false;
  };

  std::optional<Ready> TryAdmit(int64_t id, Line& line)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Group TakeHead(Line& line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Why its head can never be had; OK: it can, once the pins are gone.
  absl::Status RefusalOf(const Group& group) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsFree(const Want& want) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsBlockedByOthers(int64_t id, const Group& group) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Pins of queues of bytes that are in the group's way.
  void Recall(const Group& group) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Pin Take(int64_t id, const Want& want) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string Holders() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void NoteChange() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Process process_;
  Clock& clock_;
  const int node_;
  mutable Mutex mutex_;
  CondVar changed_;
  uint64_t changes_ ABSL_GUARDED_BY(mutex_) = 0;  // that a head may wait for
  std::vector<std::unique_ptr<Piece>> pieces_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, Tensor> tensors_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> names_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, Line> lines_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, PinRecord> pins_ ABSL_GUARDED_BY(mutex_);
  int64_t next_tensor_ ABSL_GUARDED_BY(mutex_) = 0;
  int64_t next_line_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t next_token_ ABSL_GUARDED_BY(mutex_) = 1;
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
  Stats stats_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
