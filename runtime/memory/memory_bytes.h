// A queue of bytes over a MemoryStore: what it asks for is in memory, so that a
// pin is recalled for another's access alone. Thread-safe.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "runtime/memory/memory_store.h"
#include "terrace/byte_queue.h"

namespace terrace {

// `clock` outlives the queue.
absl::StatusOr<std::unique_ptr<ByteQueue>> OpenMemoryBytes(
    std::shared_ptr<MemoryStore> store, Clock& clock);

}  // namespace terrace
