// What the customers' sides of all queues have in common: a queue's id, the
// client whose queue it is, and the tier of its pins. It asks for steps, and
// makes pins of what a group was granted. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "runtime/messages/answers.h"
#include "runtime/messages/inbox.h"
#include "runtime/messages/intake.h"
#include "runtime/messages/port.h"
#include "runtime/messages/request_server.h"
#include "runtime/messages/requests.h"
#include "terrace/pin.h"

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
  std::shared_ptr<RequestServer> server;  // null: the mover alone
};

class QueueClient {
 public:
  QueueClient(int64_t id, const TierBase& base, QueueParts parts);

  int64_t id() const { return id_; }
  Clock& clock() const { return *parts_.clock; }
  const std::shared_ptr<Inbox>& inbox() const { return parts_.inbox; }
  bool IsOwnProcess() const { return parts_.inbox->IsOwnProcess(); }
  absl::Status Closed() const { return parts_.inbox->Closed(); }
  template <typename Body>
  absl::Status Post(Body request) const {
    return parts_.intake->Post(std::move(request));
  }
  // What was posted, where it is waited for next.
  void Serve() const {
    if (parts_.server != nullptr) parts_.server->PostAndServe([] {});
  }
  // What is waited for next.
  template <typename Body>
  absl::Status PostAndServe(Body request) const {
    return terrace::PostAndServe(parts_.server.get(), *parts_.intake,
                                 std::move(request));
  }
  // Ends when the mover answers.
  absl::Status Ask(StepRequest::Kind kind, int64_t step) const;
  // The pins end at `owner`. Or why nothing was granted.
  absl::StatusOr<std::vector<Pin>> MakePins(
      const std::shared_ptr<PinOwner>& owner,
      const absl::StatusOr<Grants>& grants) const;

 private:
  Pin MakePin(const std::shared_ptr<PinOwner>& owner, const Grant& grant) const;

  const int64_t id_;
  const TierBase base_;
  const QueueParts parts_;
};

}  // namespace terrace
