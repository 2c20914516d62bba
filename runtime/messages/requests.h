// What is asked of the mover. All are values: ids, numbers, names and times,
// without a pointer or a callback, so that a client in another process can send
// them. Each that is answered has a RequestId, and its client's Port delivers
// the answer (runtime/messages/answers.h).
//
// In a message from outside a deadline is by the wall clock; the Intake turns
// it, and in the mover it is by the runtime's.
#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "absl/time/time.h"
#include "runtime/messages/request_id.h"
#include "runtime/tensor/runtime_image.h"
#include "terrace/pin.h"
#include "terrace/request.h"
#include "terrace/tensor.h"

namespace terrace {

// All of them or none. Answer: std::vector<TensorId>.
struct RegisterRequest {
  RequestId id;
  std::vector<TensorSpec> specs;
};
// Answer: Status.
struct UnregisterRequest {
  RequestId id;
  TensorId tensor;
};
// Answer: OpenedQueue.
struct OpenRequest {
  RequestId id;
  int64_t slot_bytes = 0;
  int slots = 0;
  absl::Time deadline;
  std::string tier;  // where its window is, as Runtime::OpenQueue has it
};
// Of a queue of bytes, which has no slots. Answer: OpenedQueue.
struct OpenBytesRequest {
  RequestId id;
  int64_t window_bytes = 0;
  std::string tier;
};
struct CloseQueueRequest {
  int64_t queue = -1;
};
// Answer: a ReadyGroup with this tag, in the queue's port.
struct PushRequest {
  int64_t queue = -1;
  std::vector<Want> wants;
  uint64_t tag = 0;
  absl::Time deadline;
};
// At a queue of bytes, in one of its lanes. `in_use`: the pins that its asker
// uses until it has the answer. Answer: a ReadyGroup with this tag, in the
// queue's port.
struct PushBytesRequest {
  int64_t queue = -1;
  std::vector<Want> wants;
  std::vector<uint64_t> in_use;
  int lane = 0;
  uint64_t tag = 0;
  absl::Time deadline;
};
// The users of those pins wait for something else from here on, or no more.
struct WaitingRequest {
  int64_t queue = -1;
  std::vector<uint64_t> in_use;
  bool begins = false;
};
// Pins of at most so many bytes are held at that queue of bytes.
struct HoldAtMostRequest {
  int64_t queue = -1;
  int64_t bytes = 0;
};
// What a RecalledPin is answered by where its holder uses the pin.
struct KeepRequest {
  uint64_t token = 0;
};
// Uses, in order, of what a queue of bytes has pinned.
struct TouchRequest {
  int64_t queue = -1;
  std::vector<TensorId> tensors;
  int lane = 0;
};
struct EndPinRequest {
  uint64_t token = 0;
  PinEnd end = PinEnd::kPublish;
};
// Answer: Status.
struct StepRequest {
  enum class Kind : uint8_t { kBegin, kCommit, kAbort };
  RequestId id;
  Kind kind = Kind::kBegin;
  int64_t queue = -1;
  int64_t step = 0;
};
struct PrefetchRequest {
  std::vector<TensorId> tensors;
};
// Answer: Stats.
struct StatsRequest {
  RequestId id;
};

// What any client may send, through its Intake.
using Request =
    std::variant<RegisterRequest, UnregisterRequest, OpenRequest,
                 OpenBytesRequest, CloseQueueRequest, PushRequest,
                 PushBytesRequest, WaitingRequest, HoldAtMostRequest,
                 KeepRequest, TouchRequest, EndPinRequest, StepRequest,
                 PrefetchRequest, StatsRequest>;

// The arena has these more at its end. Answer: Status.
struct GrowRequest {
  RequestId id;
  int64_t bytes = 0;
};
// Answer: Status.
struct CloseRequest {
  RequestId id;
  absl::Time deadline;
  bool force = false;  // held pins and queues do not refuse it
};

// The tensors behind that one, by their ids. Answer: TensorPage.
struct ListRequest {
  RequestId id;
  TensorId after;
};

// What nobody has pinned, or waits for, and no window has leaves the memories;
// what is newer than what lies below is written there first. Another one takes
// its place. Answer: Evicted, by the deadline.
struct EvictRequest {
  RequestId id;
  uint64_t ticket = 0;  // as Evicted has it
  absl::Time deadline;
};

// Of the first memory, so many bytes in all are lent from here on, as far as
// they can be had by the deadline; what was lent beyond them comes back.
// Another one takes its place. Answer: Lent.
struct LendRequest {
  RequestId id;
  uint64_t ticket = 0;  // as Lent has it
  int64_t bytes = 0;
  absl::Time deadline;
  bool in_parts = false;  // answers as it goes on, too
};

// A runtime that has done nothing yet goes on where another was, over the same
// memory and files; all of it is that client's. Answer: Status.
struct RestoreRequest {
  RequestId id;
  ClientId client = kLocalClient;
  RuntimeImage image;
};

// What only the process that made the runtime asks.
using OwnerRequest = std::variant<GrowRequest, CloseRequest, ListRequest,
                                  EvictRequest, LendRequest, RestoreRequest>;

}  // namespace terrace
