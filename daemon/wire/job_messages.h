// What a process and the runtime that a host's daemon has for it say to each
// other: the messages of a runtime's clients (runtime/messages/), in lists, and
// what begins and ends such a connection.
//
// Plain values.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "runtime/messages/answers.h"
#include "runtime/messages/request_id.h"
#include "runtime/messages/requests.h"
#include "terrace/options.h"
#include "terrace/stats.h"

namespace terrace {

// By which a process goes on with its runtime once the daemon that had it has
// gone; all zeros: none.
using JobToken = std::array<std::byte, 16>;

// A process begins a runtime of its own, or goes on with one. Answered by a
// Welcome.
struct Hello {
  std::string version;
  std::string job;  // "": none of its user's that has a name
  int64_t memory_bytes = 0;
  int64_t growth_bytes = 0;
  EvictionKind eviction = EvictionKind::kNextUse;
  bool prefetch = true;
  JobToken token = {};      // of what it goes on with, as far as that decides
  int64_t patience_ms = 0;  // how long it waits for another daemon
};

// Two descriptors come beside it: of the runtime's memory, and of the page that
// tells which of its loops have stopped (daemon/watch/loop_page.h).
struct Welcome {
  ClientId client = 0;  // that the process is of that runtime
  int64_t memory_bytes = 0;
  int64_t file_bytes = 0;  // of the memory file, with what it may grow by
  JobToken token = {};     // serves once
};

// What a process has that goes on with its runtime, as it knows it: all else
// that another daemon had for it is nobody's. The first that it says.
struct ClaimedQueue {
  int64_t queue = -1;
  std::optional<int64_t> step;  // that is open
  int64_t hold_at_most = -1;    // -1: it was never told
};
// Tensors by their numbers.
struct TensorRange {
  int64_t first = 0;
  int64_t end = 0;  // behind the last

  friend bool operator==(const TensorRange&, const TensorRange&) = default;
};
struct ClaimRequest {
  int64_t memory_bytes = 0;  // with what it grew by
  std::vector<ClaimedQueue> queues;
  std::vector<uint64_t> pins;  // with those whose end may not have been heard
  // Of these, what it was asked for back; and of those, what it uses.
  std::vector<uint64_t> recalled;
  std::vector<uint64_t> kept;
  // Those that it was ever told it has.
  std::vector<TensorRange> known;
  // Whose end it asked for and has no answer to, and asks for again.
  std::vector<TensorId> unregistering;
};

using JobRequest = std::variant<
    RegisterRequest, UnregisterRequest, OpenRequest, OpenBytesRequest,
    CloseQueueRequest, PushRequest, PushBytesRequest, WaitingRequest,
    HoldAtMostRequest, KeepRequest, TouchRequest, EndPinRequest, StepRequest,
    PrefetchRequest, StatsRequest, GrowRequest, CloseRequest, ClaimRequest>;

// What a message has of them at most.
inline constexpr size_t kMostRequestsInMessage = 4096;

// In the order in which they were posted. Deadlines are by the wall clock, and
// who asks is not said: the connection tells.
struct JobRequests {
  uint64_t posted = 0;  // how many the client had posted with these
  std::vector<JobRequest> requests;
};

// The answer to the request with that number.
struct AnswerNews {
  uint64_t number = 0;
  Answer answer;
};
// As QueueSink::Publish has it, of a queue of the client's. `processed` counts
// what the client has posted.
struct QueueNews {
  int64_t queue = -1;
  std::vector<ReadyGroup> groups;
  bool blocked_by_own_pins = false;
  uint64_t processed = 0;
  absl::Status blocked_also;
};
// As ByteSink::Publish has it, of a queue of bytes of the client's.
struct BytesNews {
  int64_t queue = -1;
  std::vector<ReadyGroup> groups;
  std::vector<uint64_t> recalls;
};
// The runtime is closed: nothing more is taken at that queue.
struct QueueClosed {
  int64_t queue = -1;
};
// The mover knows of no such queue any more: nothing more comes.
struct QueueGone {
  int64_t queue = -1;
};
// Before the answer to a Close: what GetStats says from then on.
struct LastStats {
  Stats stats;
};

using JobNewsEntry = std::variant<AnswerNews, QueueNews, BytesNews, QueueClosed,
                                  QueueGone, LastStats>;

struct JobNews {
  std::vector<JobNewsEntry> entries;
  // What the process had posted by that number has been done, and is known
  // beyond this daemon.
  uint64_t processed = 0;
};

// A piece of a message that is longer than a packet.
struct Fragment {
  std::vector<std::byte> bytes;
  uint64_t left_bytes = 0;  // of the pieces that follow
};

}  // namespace terrace
