// The customer's side of a queue of bytes: posts what it is given through its
// client's intake, takes what its port publishes, and makes pins of it.
// Thread-safe.
#pragma once

#include <cstdint>
#include <memory>

#include "runtime/client/queue_client.h"
#include "runtime/messages/byte_port.h"
#include "terrace/byte_queue.h"

namespace terrace {

// `port`: of queue `id`.
std::unique_ptr<ByteQueue> MakeByteQueue(int64_t id,
                                         std::shared_ptr<BytePort> port,
                                         const TierBase& base,
                                         QueueParts client);

}  // namespace terrace
