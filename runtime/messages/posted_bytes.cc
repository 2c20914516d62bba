#include "runtime/messages/posted_bytes.h"

#include <utility>
#include <vector>

#include "base/status_macros.h"
#include "tiers/left_behind.h"

namespace terrace {
namespace {

class PostedBytes final : public ByteQueue {
 public:
  PostedBytes(int64_t id, std::shared_ptr<BytePort> port, const TierBase& base,
              QueueParts client)
      : id_(id),
        port_(std::move(port)),
        base_(base),
        client_(std::move(client)) {}

  ~PostedBytes() override {
    // In a forked child the port's lock may be held by a thread it lacks, and
    // such threads may be waiting: the port is left as it is.
    if (!client_.inbox->IsOwnProcess()) {
      LeaveBehind(port_);
      return;
    }
    client_.intake->Post(CloseQueueRequest{id_}).IgnoreError();
    port_->Close();
  }

  absl::StatusOr<uint64_t> Push(absl::Span<const Want> wants,
                                absl::Span<const uint64_t> in_use,
                                Time deadline) override {
    if (IsClosed()) return client_.inbox->Closed();
    PushBytesRequest message;
    message.queue = id_;
    message.wants.assign(wants.begin(), wants.end());
    message.in_use.assign(in_use.begin(), in_use.end());
    message.deadline = deadline;
    const uint64_t request = port_->AddRequest();
    message.tag = request;
    absl::Status posted = client_.intake->Post(std::move(message));
    if (posted.ok()) return request;
    port_->DropRequest(request);
    return posted;
  }

  absl::StatusOr<Awaited> Await(uint64_t request, Time deadline) override {
    if (IsClosed()) return client_.inbox->Closed();
    TERRACE_ASSIGN_OR_RETURN(BytePort::News news,
                             port_->Take(*client_.clock, request,
                                         client_.clock->FromWall(deadline)));
    Awaited awaited;
    awaited.recalls = std::move(news.recalls);
    if (!news.group.has_value()) return awaited;
    awaited.cause = news.group->cause;
    awaited.beyond_bytes = news.group->beyond_bytes;
    awaited.pins = MakePins(*news.group);
    return awaited;
  }

  absl::Status Join(uint64_t request,
                    absl::Span<const uint64_t> in_use) override {
    return client_.intake->Post(
        JoinRequest{id_, request, {in_use.begin(), in_use.end()}});
  }

  absl::StatusOr<std::vector<uint64_t>> AwaitRecalls(Time deadline) override {
    if (IsClosed()) return client_.inbox->Closed();
    return port_->TakeRecalls(*client_.clock,
                              client_.clock->FromWall(deadline));
  }
  void WakeRecalls() override {
    if (client_.inbox->IsOwnProcess()) port_->WakeRecalls();
  }
  void Keep(uint64_t token) override {
    client_.intake->Post(KeepRequest{token}).IgnoreError();
  }
  void Touch(absl::Span<const TensorId> tensors) override {
    client_.intake->Post(TouchRequest{id_, {tensors.begin(), tensors.end()}})
        .IgnoreError();
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

  absl::StatusOr<std::vector<Pin>> MakePins(const ReadyGroup& group) const {
    if (!group.grants.ok()) return group.grants.status();
    std::vector<Pin> pins;
    pins.reserve(group.grants->size());
    for (const Grant& grant : *group.grants) {
      pins.emplace_back(
          port_, grant.token, grant.tensor,
          absl::Span<std::byte>(base_.data + grant.offset,
                                static_cast<size_t>(grant.size_bytes)));
    }
    return pins;
  }

  const int64_t id_;
  const std::shared_ptr<BytePort> port_;
  const TierBase base_;
  const QueueParts client_;
};

}  // namespace

std::unique_ptr<ByteQueue> MakeByteQueue(int64_t id,
                                         std::shared_ptr<BytePort> port,
                                         const TierBase& base,
                                         QueueParts client) {
  return std::make_unique<PostedBytes>(id, std::move(port), base,
                                       std::move(client));
}

}  // namespace terrace
