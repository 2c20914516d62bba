// The customer's side of a queue: posts what it is given through its client's
// intake, takes what its port publishes, and makes pins of it. One thread at a
// time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/clock.h"
#include "runtime/messages/inbox.h"
#include "runtime/messages/intake.h"
#include "runtime/messages/port.h"
#include "terrace/request.h"

namespace terrace {

// Where the bytes of a queue's tier begin in this process.
struct TierBase {
  std::byte* data = nullptr;  // null: the CPU cannot address them
  uintptr_t address = 0;      // as the tier's device has it
};

// What every queue of a client has of it.
struct QueueParts {
  Clock* clock = nullptr;  // outlives the queue
  std::shared_ptr<Inbox> inbox;
  std::shared_ptr<Intake> intake;
  std::shared_ptr<Port> port;
};

// `port`: of queue `id`.
std::unique_ptr<RequestQueue> MakeRequestQueue(int64_t id,
                                               std::shared_ptr<QueuePort> port,
                                               const TierBase& base,
                                               QueueParts client);

}  // namespace terrace
