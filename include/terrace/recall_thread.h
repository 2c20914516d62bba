// The thread that answers the recalls of a queue of bytes while no thread of
// the customer waits there (terrace/byte_queue.h).
//
//   auto thread = RecallThread::Start(*queue, [&](uint64_t token) { ... });
//
// It is named terrace-recall, and waits in the queue. A fork() comes between
// two answers, and not within one unless that takes a second; the child has no
// such thread.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/statusor.h"
#include "terrace/byte_queue.h"

namespace terrace {

class RecallThread {
 public:
  // `answer` is called with the tokens of pins, on the thread, one at a time,
  // until the destructor returns or the runtime is closed. It ends the pin, or
  // calls Keep; it must wait for nothing that waits for the queue. The queue
  // outlives the object. ResourceExhausted: there is no thread.
  static absl::StatusOr<std::unique_ptr<RecallThread>> Start(
      ByteQueue& queue, std::function<void(uint64_t token)> answer);
  virtual ~RecallThread() = default;
};

}  // namespace terrace
