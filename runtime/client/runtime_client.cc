#include "runtime/client/runtime_client.h"

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/client/posted_bytes.h"
#include "runtime/client/request_queue.h"

namespace terrace {

absl::StatusOr<std::vector<TensorId>> RuntimeClient::Register(
    absl::Span<const TensorSpec> specs) {
  RegisterRequest message;
  message.specs.assign(specs.begin(), specs.end());
  absl::StatusOr<std::vector<TensorId>> ids =
      Ask<std::vector<TensorId>>(std::move(message));
  if (ids.ok()) intake_->OnRegistered(*ids, specs);
  return ids;
}

absl::Status RuntimeClient::Unregister(TensorId tensor) {
  if (!IsOwnProcess()) return Closed();
  Question question(*port_);
  TERRACE_RETURN_IF_ERROR(PostAndServe(
      server_.get(), *intake_, UnregisterRequest{question.id(), tensor}));
  absl::Status status = question.AwaitStatus(clock_);
  if (status.ok()) intake_->OnUnregistered(tensor);
  return status;
}

absl::StatusOr<std::unique_ptr<RequestQueue>> RuntimeClient::OpenQueue(
    int64_t slot_bytes, int slots, Time deadline, absl::string_view tier) {
  OpenRequest message;
  message.slot_bytes = slot_bytes;
  message.slots = slots;
  message.deadline = deadline;
  message.tier = std::string(tier);
  TERRACE_ASSIGN_OR_RETURN(const OpenedQueue opened,
                           Ask<OpenedQueue>(std::move(message)));
  std::shared_ptr<QueuePort> queue = port_->TakeQueue(opened.id);
  if (queue == nullptr) {
    return absl::InternalError(
        absl::StrCat("queue ", opened.id, " is open already"));
  }
  intake_->OnOpened(opened.id, slot_bytes, slots);
  return MakeRequestQueue(opened.id, std::move(queue), bases_.at(opened.tier),
                          queue_parts());
}

absl::StatusOr<std::unique_ptr<ByteQueue>> RuntimeClient::OpenBytes(
    int64_t window_bytes, absl::string_view tier) {
  OpenBytesRequest message;
  message.window_bytes = window_bytes;
  message.tier = std::string(tier);
  TERRACE_ASSIGN_OR_RETURN(const OpenedQueue opened,
                           Ask<OpenedQueue>(std::move(message)));
  intake_->OnOpenedBytes(opened.id);
  return MakeByteQueue(opened.id, port_->TakeBytes(opened.id),
                       bases_.at(opened.tier), queue_parts());
}

absl::StatusOr<Pin> RuntimeClient::Acquire(TensorId tensor, Access access,
                                           Time deadline) {
  if (!IsOwnProcess()) return Closed();
  const int64_t size = intake_->SizeOf(tensor);
  if (size < 0) {
    return absl::InvalidArgumentError(absl::StrCat("no tensor ", tensor.value));
  }
  // Of all three together, whatever is done to the wall clock meanwhile.
  const absl::Time end = clock_.FromWall(deadline);
  TERRACE_ASSIGN_OR_RETURN(const std::unique_ptr<RequestQueue> queue,
                           OpenQueue(size, 1, clock_.ToWall(end), ""));
  TERRACE_RETURN_IF_ERROR(
      queue->Push({{tensor, access}}, 0, clock_.ToWall(end)));
  TERRACE_ASSIGN_OR_RETURN(Ready ready, queue->Next(clock_.ToWall(end)));
  if (!ready.pins.ok()) return ready.pins.status();
  return std::move(ready.pins->front());
}

absl::Status RuntimeClient::Grow(int64_t bytes) const {
  if (!IsOwnProcess()) return Closed();
  Question question(*port_);
  if (!inbox_->Post(GrowRequest{question.id(), bytes})) return Closed();
  return question.AwaitStatus(clock_);
}

absl::Status RuntimeClient::Restore(ClientId client, RuntimeImage image) const {
  if (!IsOwnProcess()) return Closed();
  Question question(*port_);
  if (!inbox_->Post(RestoreRequest{question.id(), client, std::move(image)})) {
    return Closed();
  }
  return question.AwaitStatus(clock_);
}

absl::Status RuntimeClient::Close(absl::Time deadline, bool force,
                                  absl::Duration patience) const {
  if (!IsOwnProcess()) return Closed();
  Question question(*port_);
  if (!inbox_->Post(CloseRequest{question.id(), deadline, force})) {
    return absl::OkStatus();
  }
  const std::optional<absl::Status> status =
      question.AwaitStatus(clock_, std::max(deadline, clock_.Now()) + patience);
  if (status.has_value()) return *status;
  return absl::DeadlineExceededError("the runtime's owner does not answer");
}

void RuntimeClient::Prefetch(absl::Span<const TensorId> tensors) {
  intake_->Post(PrefetchRequest{{tensors.begin(), tensors.end()}})
      .IgnoreError();
}

}  // namespace terrace
