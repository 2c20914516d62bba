#include "runtime/torch/hook/runtime_bytes.h"

#include <utility>

#include "absl/time/clock.h"
#include "runtime/base/status_macros.h"

namespace terrace {
namespace {

// A tensor of a few MiB is written in as long.
constexpr absl::Duration kRoomWait = absl::Milliseconds(2);

}  // namespace

absl::StatusOr<std::unique_ptr<RequestQueue>> RuntimeBytes::Ask(
    TensorId tensor, Access access, MakeRoom make_room) const {
  const absl::Time end = absl::Now() + patience_;
  absl::Duration wait = absl::ZeroDuration();
  while (true) {
    absl::StatusOr<std::unique_ptr<RequestQueue>> queue =
        runtime_.OpenQueueFor(tensor, absl::Now() + wait);
    if (queue.ok()) return Push(*std::move(queue), tensor, access);
    if (queue.status().code() != absl::StatusCode::kResourceExhausted) {
      return queue;
    }
    if (wait > absl::ZeroDuration()) {
      TERRACE_ASSIGN_OR_RETURN(const bool made, make_room());
      if (!made && absl::Now() >= end) return queue;
    }
    wait = kRoomWait;
  }
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
