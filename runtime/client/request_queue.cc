#include "runtime/client/request_queue.h"

#include <utility>
#include <vector>

#include "base/status_macros.h"

namespace terrace {
namespace {

class PostedQueue final : public RequestQueue {
 public:
  PostedQueue(int64_t id, std::shared_ptr<QueuePort> port, const TierBase& base,
              QueueParts client)
      : client_(id, base, std::move(client)), port_(std::move(port)) {}

  ~PostedQueue() override {
    // In a forked child the port's lock may be held by a thread it lacks.
    if (!client_.IsOwnProcess()) return;
    client_.Post(CloseQueueRequest{client_.id()}).IgnoreError();
    port_->Close();
  }

  absl::Status Push(absl::Span<const Want> wants, uint64_t tag,
                    Time deadline) override {
    if (IsClosed()) return client_.Closed();
    PushRequest message;
    message.queue = client_.id();
    message.wants.assign(wants.begin(), wants.end());
    message.tag = tag;
    message.deadline = deadline;
    // Of many, the mover serves those behind beside who pushes.
    TERRACE_RETURN_IF_ERROR(outstanding_ == 0
                                ? client_.PostAndServe(std::move(message))
                                : client_.Post(std::move(message)));
    ++outstanding_;
    return absl::OkStatus();
  }

  absl::StatusOr<Ready> Next(Time deadline) override {
    if (IsClosed()) return client_.Closed();
    if (outstanding_ == 0) {
      return absl::FailedPreconditionError("nothing is pushed");
    }
    if (port_->IsEmpty()) client_.Serve();
    absl::StatusOr<ReadyGroup> group =
        port_->Take(client_.clock(), client_.inbox()->posted(),
                    client_.clock().FromWall(deadline));
    if (!group.ok()) {
      return port_->closed() ? client_.Closed() : group.status();
    }
    --outstanding_;
    return MakeReady(*group);
  }

  void Wake() override {
    // In a forked child the port's lock may be held by a thread it lacks.
    if (client_.IsOwnProcess()) port_->Wake();
  }

  absl::Status BeginStep(int64_t step) override {
    return client_.Ask(StepRequest::Kind::kBegin, step);
  }
  absl::Status CommitStep(const StepInfo& info) override {
    return client_.Ask(StepRequest::Kind::kCommit, info.step);
  }
  absl::Status AbortStep() override {
    return client_.Ask(StepRequest::Kind::kAbort, 0);
  }

 private:
  bool IsClosed() const { return !client_.IsOwnProcess() || port_->closed(); }

  Ready MakeReady(const ReadyGroup& group) const {
    Ready ready;
    ready.tag = group.tag;
    ready.cause = group.cause;
    ready.pins = client_.MakePins(client_.inbox(), group.grants);
    return ready;
  }

  const QueueClient client_;
  const std::shared_ptr<QueuePort> port_;
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
