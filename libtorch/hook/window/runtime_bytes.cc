#include "libtorch/hook/window/runtime_bytes.h"

#include <utility>

#include "absl/time/clock.h"
#include "base/io_fault.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

// Ask waits so long for room of a tensor's own that is free, as far as others
// do not take it.
constexpr absl::Duration kOwnRoomWait = absl::Milliseconds(10);
// Register waits so long for the room of a queue that nothing uses.
constexpr absl::Duration kTrialWait = absl::Milliseconds(100);

}  // namespace

absl::StatusOr<std::vector<TensorId>> RuntimeBytes::Register(
    absl::Span<const TensorSpec> specs) const {
  absl::StatusOr<std::vector<TensorId>> ids = runtime_.Register(specs);
  if (!absl::IsUnavailable(ids.status())) return ids;
  // Asking for a queue tries the paths again, whatever becomes of the queue.
  runtime_.OpenQueue(/*slot_bytes=*/1, /*slots=*/1, absl::Now() + kTrialWait)
      .status()
      .IgnoreError();
  return runtime_.Register(specs);
}

absl::StatusOr<std::unique_ptr<RequestQueue>> RuntimeBytes::Ask(
    const Wanted& wanted, MakeRoom make_room) const {
  const absl::Time end = absl::Now() + patience_;
  while (true) {
    absl::StatusOr<std::unique_ptr<RequestQueue>> queue =
        wanted.own_bytes > 0 ? AskForOwn(wanted, end)
                             : runtime_.OpenQueueFor(wanted.tensor, end);
    if (queue.ok()) {
      return Push(*std::move(queue), wanted.tensor, wanted.access);
    }
    if (queue.status().code() != absl::StatusCode::kResourceExhausted) {
      return queue;
    }
    // A tensor that stays because it cannot be written makes no room.
    const bool is_stuck = IoFaultOf(queue.status()).error != 0;
    TERRACE_ASSIGN_OR_RETURN(const bool is_changed,
                             make_room(is_stuck ? absl::InfinitePast() : end));
    if (!is_changed) return queue;
  }
}

absl::StatusOr<std::unique_ptr<RequestQueue>> RuntimeBytes::AskForOwn(
    const Wanted& wanted, absl::Time end) const {
  absl::StatusOr<std::unique_ptr<RequestQueue>> queue =
      runtime_.OpenQueue(wanted.own_bytes, 1, absl::Now());
  if (queue.status().code() != absl::StatusCode::kResourceExhausted) {
    return queue;
  }
  // OpenQueue would wait for pins too, of which the caller may be told
  // otherwise. A queue for the tensor waits for what is being written back
  // alone, and gives the same room back.
  TERRACE_RETURN_IF_ERROR(runtime_.OpenQueueFor(wanted.tensor, end).status());
  return runtime_.OpenQueue(wanted.own_bytes, 1, absl::Now() + kOwnRoomWait);
}

absl::StatusOr<std::unique_ptr<RequestQueue>> RuntimeBytes::AskAtOnce(
    TensorId tensor) {
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<RequestQueue> queue,
                           runtime_.OpenQueueFor(tensor, absl::Now()));
  return Push(std::move(queue), tensor, Access::kUpdate);
}

absl::StatusOr<std::unique_ptr<RequestQueue>> RuntimeBytes::Push(
    std::unique_ptr<RequestQueue> queue, TensorId tensor, Access access) const {
  TERRACE_RETURN_IF_ERROR(
      queue->Push({{tensor, access}}, /*tag=*/0, absl::Now() + patience_));
  return queue;
}

absl::StatusOr<Pin> RuntimeBytes::Take(RequestQueue& queue) const {
  TERRACE_ASSIGN_OR_RETURN(Ready ready, queue.Next(absl::Now() + patience_));
  TERRACE_RETURN_IF_ERROR(ready.pins.status());
  return std::move(ready.pins->front());
}

}  // namespace terrace
