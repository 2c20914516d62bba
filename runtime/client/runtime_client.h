// A client of a runtime, in the client's own process: it asks through its
// intake and waits at its port, whoever answers there. The public Runtime of
// each kind that has a mover, here or in a daemon, is one with its owner's
// requests beside.
//
// Thread-safe. In a forked child every call is Cancelled.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "runtime/client/queue_client.h"
#include "runtime/messages/inbox.h"
#include "runtime/messages/intake.h"
#include "runtime/messages/port.h"
#include "runtime/messages/request_server.h"
#include "runtime/messages/requests.h"
#include "terrace/byte_queue.h"
#include "terrace/request.h"
#include "tiers/reservation.h"

namespace terrace {

// Of all working tiers.
using TierBases = absl::flat_hash_map<TierId, TierBase>;

class RuntimeClient {
 public:
  // `clock` outlives the client and its queues. The inbox is the pins' owner.
  // `server`: of what its threads wait for; null: the mover alone.
  RuntimeClient(Clock& clock, std::shared_ptr<Inbox> inbox,
                std::shared_ptr<Port> port, TierBases bases,
                std::shared_ptr<RequestServer> server = nullptr)
      : clock_(clock),
        inbox_(std::move(inbox)),
        port_(std::move(port)),
        intake_(std::make_shared<Intake>(port_->client(), clock_, inbox_)),
        bases_(std::move(bases)),
        server_(std::move(server)) {}

  bool IsOwnProcess() const { return inbox_->IsOwnProcess(); }
  absl::Status Closed() const { return inbox_->Closed(); }

  // As Runtime's of the same names.
  absl::StatusOr<std::vector<TensorId>> Register(
      absl::Span<const TensorSpec> specs);
  absl::Status Unregister(TensorId tensor);
  absl::StatusOr<std::unique_ptr<RequestQueue>> OpenQueue(
      int64_t slot_bytes, int slots, Time deadline, absl::string_view tier);
  absl::StatusOr<std::unique_ptr<ByteQueue>> OpenBytes(int64_t window_bytes,
                                                       absl::string_view tier);
  absl::StatusOr<Pin> Acquire(TensorId tensor, Access access, Time deadline);
  void Prefetch(absl::Span<const TensorId> tensors);

  // The answer to a request, posted through the intake.
  template <typename T, typename Body>
  absl::StatusOr<T> Ask(Body message) const {
    if (!IsOwnProcess()) return Closed();
    Question question(*port_);
    message.id = question.id();
    TERRACE_RETURN_IF_ERROR(
        PostAndServe(server_.get(), *intake_, std::move(message)));
    return question.Await<T>(clock_);
  }
  // As the runtime's owner: its memory has so many more bytes.
  absl::Status Grow(int64_t bytes) const;
  // Likewise: all that the image has is that client's.
  absl::Status Restore(ClientId client, RuntimeImage image) const;
  // Likewise; `deadline` is by the clock. OK: it is closed already.
  // DeadlineExceeded also where there is no answer for `patience` after it.
  absl::Status Close(absl::Time deadline, bool force,
                     absl::Duration patience = absl::InfiniteDuration()) const;

 private:
  QueueParts queue_parts() const {
    return {.clock = &clock_,
            .inbox = inbox_,
            .intake = intake_,
            .port = port_,
            .server = server_};
  }

  Clock& clock_;
  const std::shared_ptr<Inbox> inbox_;
  const std::shared_ptr<Port> port_;
  const std::shared_ptr<Intake> intake_;
  const TierBases bases_;
  const std::shared_ptr<RequestServer> server_;
};

}  // namespace terrace
