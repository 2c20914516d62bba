// The customer's side of a queue: checks what it is given, posts it to the
// mover, takes what its port publishes. One thread at a time.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/types/span.h"
#include "base/clock.h"
#include "runtime/messages/inbox.h"
#include "runtime/tensor/id_map.h"
#include "terrace/request.h"

namespace terrace {

// Sizes of registered tensors. Thread-safe.
class TensorSizes {
 public:
  void Set(absl::Span<const TensorId> ids, absl::Span<const TensorSpec> specs);
  void Erase(TensorId id);
  int64_t Get(TensorId id) const;  // -1: unknown

 private:
  mutable Mutex mutex_;
  IdMap<int64_t> sizes_ ABSL_GUARDED_BY(mutex_);
};

// Everything referenced outlives the queue, or is shared with it.
std::unique_ptr<RequestQueue> MakeRequestQueue(
    OpenedQueue opened, int64_t slot_bytes, int slots, Clock& clock,
    std::shared_ptr<Inbox> inbox, std::shared_ptr<const TensorSizes> sizes);

}  // namespace terrace
