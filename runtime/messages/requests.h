// What customers ask of the mover. A request that is answered carries the
// Reply that its asker awaits. Deadlines are by the runtime's clock here, no
// longer by the wall clock.
#pragma once

#include <cstdint>
#include <memory>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/messages/queue_port.h"
#include "runtime/messages/reply.h"
#include "terrace/pin.h"
#include "terrace/request.h"
#include "terrace/stats.h"
#include "terrace/tensor.h"
#include "terrace/tier.h"

namespace terrace {

struct OpenedQueue {
  int64_t id = -1;
  std::shared_ptr<QueuePort> port;
};

// All of them or none.
struct RegisterRequest {
  std::vector<TensorSpec> specs;
  std::shared_ptr<Reply<absl::StatusOr<std::vector<TensorId>>>> reply;
};
struct UnregisterRequest {
  TensorId tensor;
  std::shared_ptr<Reply<absl::Status>> reply;
};
struct OpenRequest {
  int64_t slot_bytes = 0;
  int slots = 0;
  absl::Time deadline;
  std::shared_ptr<Reply<absl::StatusOr<OpenedQueue>>> reply;
  TierKind tier = TierKind::kDram;  // where its window is
  TensorId only;  // of a window for one tensor: a slot of its size
};
struct CloseQueueRequest {
  int64_t queue = -1;
};
struct PushRequest {
  int64_t queue = -1;
  std::vector<Want> wants;
  uint64_t tag = 0;
  absl::Time deadline;
};
struct EndPinRequest {
  uint64_t token = 0;
  PinEnd end = PinEnd::kPublish;
};
struct StepRequest {
  enum class Kind : uint8_t { kBegin, kCommit, kAbort };
  Kind kind = Kind::kBegin;
  int64_t queue = -1;
  int64_t step = 0;
  std::shared_ptr<Reply<absl::Status>> reply;
};
// The arena has these more at its end.
struct GrowRequest {
  int64_t bytes = 0;
  std::shared_ptr<Reply<absl::Status>> reply;
};
struct PrefetchRequest {
  std::vector<TensorId> tensors;
};
struct StatsRequest {
  std::shared_ptr<Reply<Stats>> reply;
};
struct CloseRequest {
  absl::Time deadline;
  bool force = false;  // held pins and queues do not refuse it
  std::shared_ptr<Reply<absl::Status>> reply;
};
using Request =
    std::variant<RegisterRequest, UnregisterRequest, OpenRequest,
                 CloseQueueRequest, PushRequest, EndPinRequest, StepRequest,
                 GrowRequest, PrefetchRequest, StatsRequest, CloseRequest>;

}  // namespace terrace
