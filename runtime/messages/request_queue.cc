#include "runtime/messages/request_queue.h"

#include <utility>
#include <vector>

#include "base/status_macros.h"

namespace terrace {
namespace {

class PostedQueue final : public RequestQueue {
 public:
  PostedQueue(int64_t id, std::shared_ptr<QueuePort> port, const TierBase& base,
              QueueParts client)
      : id_(id),
        port_(std::move(port)),
        base_(base),
        client_(std::move(client)) {}

  ~PostedQueue() override {
    // In a forked child the port's lock may be held by a thread it lacks.
    if (!client_.inbox->IsOwnProcess()) return;
    client_.intake->Post(CloseQueueRequest{id_}).IgnoreError();
    port_->Close();
  }

  absl::Status Push(absl::Span<const Want> wants, uint64_t tag,
                    Time deadline) override {
    if (IsClosed()) return client_.inbox->Closed();
    PushRequest message;
    message.queue = id_;
    message.wants.assign(wants.begin(), wants.end());
    message.tag = tag;
    message.deadline = deadline;
    TERRACE_RETURN_IF_ERROR(client_.intake->Post(std::move(message)));
    ++outstanding_;
    return absl::OkStatus();
  }

  absl::StatusOr<Ready> Next(Time deadline) override {
    if (IsClosed()) return client_.inbox->Closed();
    if (outstanding_ == 0) {
      return absl::FailedPreconditionError("nothing is pushed");
    }
    absl::StatusOr<ReadyGroup> group =
        port_->Take(*client_.clock, client_.inbox->posted(),
                    client_.clock->FromWall(deadline));
    if (!group.ok()) return group.status();
    --outstanding_;
    return MakeReady(*group);
  }

  void Wake() override {
    // In a forked child the port's lock may be held by a thread it lacks.
    if (client_.inbox->IsOwnProcess()) port_->Wake();
  }

  absl::Status BeginStep(int64_t step) override {
    return Ask(StepRequest::Kind::kBegin, step);
  }
  absl::Status CommitStep(const StepInfo& info) override {
    return Ask(StepRequest::Kind::kCommit, info.step);
  }
  absl::Status AbortStep() override {
    return Ask(StepRequest::Kind::kAbort, 0);
  }

 private:
  bool IsClosed() const {
    return !client_.inbox->IsOwnProcess() || port_->closed();
  }

  absl::Status Ask(StepRequest::Kind kind, int64_t step) {
    if (!client_.inbox->IsOwnProcess()) return client_.inbox->Closed();
    Question question(*client_.port);
    TERRACE_RETURN_IF_ERROR(
        client_.intake->Post(StepRequest{question.id(), kind, id_, step}));
    return question.AwaitStatus(*client_.clock);
  }

  Ready MakeReady(const ReadyGroup& group) const {
    Ready ready;
    ready.tag = group.tag;
    ready.cause = group.cause;
    if (!group.grants.ok()) {
      ready.pins = group.grants.status();
      return ready;
    }
    std::vector<Pin> pins;
    pins.reserve(group.grants->size());
    for (const Grant& grant : *group.grants) pins.push_back(MakePin(grant));
    ready.pins = std::move(pins);
    return ready;
  }

  Pin MakePin(const Grant& grant) const {
    if (base_.data == nullptr) {
      return Pin(client_.inbox, grant.token, grant.tensor,
                 base_.address + static_cast<uintptr_t>(grant.offset));
    }
    return Pin(client_.inbox, grant.token, grant.tensor,
               absl::Span<std::byte>(base_.data + grant.offset,
                                     static_cast<size_t>(grant.size_bytes)));
  }

  const int64_t id_;
  const std::shared_ptr<QueuePort> port_;
  const TierBase base_;
  const QueueParts client_;
  int64_t outstanding_ = 0;  // pushed and not yet returned by Next
};

}  // namespace

std::unique_ptr<RequestQueue> MakeRequestQueue(int64_t id,
                                               std::shared_ptr<QueuePort> port,
                                               const TierBase& base,
                                               QueueParts client) {
  return std::make_unique<PostedQueue>(id, std::move(port), base,
                                       std::move(client));
}

}  // namespace terrace
