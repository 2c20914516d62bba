// Where requests come in from outside: what a client sends is checked here, and
// the mover sees only what may be. A client has an intake of its own, which
// knows the client's tensors and queues; a client's word for who it is does not
// count. It also turns deadlines, which are by the wall clock outside, into the
// runtime's time.
//
// Thread-safe. A request takes one look at what the client has, under one lock.
// Pins that this process has end at the Inbox themselves: each ends once by its
// type.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <variant>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "runtime/messages/inbox.h"
#include "runtime/messages/requests.h"
#include "runtime/tensor/id_map.h"

namespace terrace {

class Intake {
 public:
  // `clock` outlives the intake.
  Intake(ClientId client, Clock& clock, std::shared_ptr<Inbox> inbox)
      : client_(client), clock_(clock), inbox_(std::move(inbox)) {}

  // Posts the request with the client's id and the runtime's time in it.
  // InvalidArgument, which names the value, and nothing is posted: a tensor or
  // a queue that the client has not, more than a queue's window holds, another
  // client's pin, or a value that is none of its type's. Cancelled: the runtime
  // is closed, or another process's.
  template <typename Body>
  absl::Status Post(Body request) {
    if (!inbox_->IsOwnProcess()) return inbox_->Closed();
    const absl::Status wrong = Check(request);
    if (!wrong.ok()) return inbox_->shut() ? inbox_->Closed() : wrong;
    if constexpr (requires { request.id; }) request.id.client = client_;
    if constexpr (requires { request.deadline; }) {
      request.deadline = clock_.FromWall(request.deadline);
    }
    if (!Pass(std::move(request))) return inbox_->Closed();
    return absl::OkStatus();
  }
  // As it comes over a wire.
  absl::Status Post(Request request) {
    return std::visit([this](auto& body) { return Post(std::move(body)); },
                      request);
  }

  // What the client has been told that it has.
  void OnRegistered(absl::Span<const TensorId> tensors,
                    absl::Span<const TensorSpec> specs);
  void OnUnregistered(TensorId tensor);
  void OnOpened(int64_t queue, int64_t slot_bytes, int slots);
  void OnOpenedBytes(int64_t queue);

  // Of the payload; -1: the client has no such tensor.
  int64_t SizeOf(TensorId tensor) const;

 private:
  struct Window {
    int64_t slot_bytes = 0;
    int slots = 0;
    bool is_of_bytes = false;  // and holds any group
  };

  bool Pass(Request request) { return inbox_->Post(std::move(request)); }
  bool Pass(TouchRequest request) {
    return inbox_->PostTouch(std::move(request));
  }

  absl::Status Check(const RegisterRequest& request) const;
  absl::Status Check(const UnregisterRequest& request) const;
  absl::Status Check(const OpenRequest& request) const;
  absl::Status Check(const OpenBytesRequest& request) const;
  absl::Status Check(const CloseQueueRequest& request);
  absl::Status Check(const PushRequest& request) const;
  absl::Status Check(const PushBytesRequest& request) const;
  absl::Status Check(const WaitingRequest& request) const;
  absl::Status Check(const HoldAtMostRequest& request) const;
  absl::Status Check(const KeepRequest& request) const;
  absl::Status Check(TouchRequest& request) const;
  absl::Status Check(const EndPinRequest& request) const;
  absl::Status Check(const StepRequest& request) const;
  absl::Status Check(PrefetchRequest& request) const;
  absl::Status Check(const StatsRequest& /*request*/) const {
    return absl::OkStatus();
  }
  absl::Status CheckGroup(absl::Span<const Want> wants, int64_t queue,
                          bool is_of_bytes) const;
  absl::Status CheckQueueOfBytes(int64_t queue) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status CheckTokens(absl::Span<const uint64_t> tokens) const;
  int64_t SizeOfLocked(TensorId tensor) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const ClientId client_;
  Clock& clock_;
  const std::shared_ptr<Inbox> inbox_;
  mutable Mutex mutex_;
  IdMap<int64_t> sizes_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<int64_t, Window> queues_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
