// Another client of a runtime, which opens one queue: as another thread's
// OpenQueue, which waits while the test goes on.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/local_runtime.h"
#include "runtime/messages/port.h"

namespace terrace {

class OtherClient {
 public:
  explicit OtherClient(Runtime& runtime)
      : mover_(static_cast<LocalRuntime&>(runtime).mover()),
        port_(mover_.ports().Open()) {}

  // False: the runtime is gone. `deadline` is by the runtime's clock.
  bool Open(int64_t slot_bytes, int slots, absl::Time deadline) {
    OpenRequest request;
    request.id = asked_.id();
    request.slot_bytes = slot_bytes;
    request.slots = slots;
    request.deadline = deadline;
    return mover_.inbox()->Post(std::move(request));
  }
  // Waits for it and closes it again.
  absl::Status CloseOnceOpen(Clock& clock) {
    const absl::StatusOr<OpenedQueue> opened = asked_.Await<OpenedQueue>(clock);
    if (!opened.ok()) return opened.status();
    port_->TakeQueue(opened->id)->Close();
    mover_.inbox()->Post(CloseQueueRequest{opened->id});
    return absl::OkStatus();
  }

 private:
  Mover& mover_;
  const std::shared_ptr<Port> port_;
  Question asked_{*port_};
};

}  // namespace terrace
