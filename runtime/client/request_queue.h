// The customer's side of a queue: posts what it is given through its client's
// intake, takes what its port publishes, and makes pins of it. One thread at a
// time.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/client/queue_client.h"
#include "runtime/messages/queue_port.h"
#include "terrace/request.h"

namespace terrace {

// `port`: of queue `id`.
std::unique_ptr<RequestQueue> MakeRequestQueue(int64_t id,
                                               std::shared_ptr<QueuePort> port,
                                               const TierBase& base,
                                               QueueParts client);

}  // namespace terrace
