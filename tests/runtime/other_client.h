// Another client of a runtime, which opens one queue: as another thread's
// OpenQueue, which waits while the test goes on. Of a runtime that is elsewhere
// it is such a thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "runtime/local_runtime.h"
#include "runtime/messages/port.h"

namespace terrace {

class OtherClient {
 public:
  explicit OtherClient(Runtime& runtime) : runtime_(runtime) {
    auto* const local = dynamic_cast<LocalRuntime*>(&runtime);
    if (local != nullptr) local_.emplace(local->mover());
  }
  ~OtherClient() {
    if (thread_.joinable()) thread_.join();
  }

  // False: the runtime is gone. `deadline` is by the runtime's clock.
  bool Open(int64_t slot_bytes, int slots, absl::Time deadline) {
    if (!local_.has_value()) return OpenInThread(slot_bytes, slots, deadline);
    OpenRequest request;
    request.id = local_->asked.id();
    request.slot_bytes = slot_bytes;
    request.slots = slots;
    request.deadline = deadline;
    return local_->mover.inbox()->Post(std::move(request));
  }
  // Waits for it and closes it again.
  absl::Status CloseOnceOpen(Clock& clock) {
    if (!local_.has_value()) {
      thread_.join();
      return how_;
    }
    const absl::StatusOr<OpenedQueue> opened =
        local_->asked.Await<OpenedQueue>(clock);
    if (!opened.ok()) return opened.status();
    local_->port->TakeQueue(opened->id)->Close();
    local_->mover.inbox()->Post(CloseQueueRequest{opened->id});
    return absl::OkStatus();
  }

 private:
  struct Local {
    explicit Local(Mover& its) : mover(its), port(its.ports().Open()) {}

    Mover& mover;
    const std::shared_ptr<Port> port;
    Question asked{*port};
  };

  // Until the runtime has heard of it.
  bool OpenInThread(int64_t slot_bytes, int slots, absl::Time deadline) {
    const int64_t before = runtime_.GetStats().requests;
    const absl::Time by = SystemClock().ToWall(deadline);
    thread_ = std::thread([this, slot_bytes, slots, by] {
      how_ = runtime_.OpenQueue(slot_bytes, slots, by).status();
    });
    while (runtime_.GetStats().requests < before + 2) std::this_thread::yield();
    return true;
  }

  Runtime& runtime_;
  std::optional<Local> local_;
  absl::Status how_;
  std::thread thread_;
};

}  // namespace terrace
