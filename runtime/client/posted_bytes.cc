#include "runtime/client/posted_bytes.h"

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
      : client_(id, base, std::move(client)), port_(std::move(port)) {}

  ~PostedBytes() override {
    // In a forked child the port's lock may be held by a thread it lacks, and
    // such threads may be waiting: the port is left as it is.
    if (!client_.IsOwnProcess()) {
      LeaveBehind(port_);
      return;
    }
    client_.Post(CloseQueueRequest{client_.id()}).IgnoreError();
    port_->Close();
  }

  absl::StatusOr<uint64_t> Push(absl::Span<const Want> wants,
                                absl::Span<const uint64_t> in_use,
                                Time deadline, int lane) override {
    if (IsClosed()) return client_.Closed();
    PushBytesRequest message;
    message.queue = client_.id();
    message.wants.assign(wants.begin(), wants.end());
    message.in_use.assign(in_use.begin(), in_use.end());
    message.lane = lane;
    message.deadline = deadline;
    const uint64_t request = port_->AddRequest();
    message.tag = request;
    absl::Status posted = client_.PostAndServe(std::move(message));
    if (posted.ok()) return request;
    port_->DropRequest(request);
    return posted;
  }

  absl::StatusOr<Awaited> Await(uint64_t request, Time deadline) override {
    if (IsClosed()) return client_.Closed();
    if (!port_->HasNews(request)) client_.Serve();
    absl::StatusOr<BytePort::News> news = port_->Take(
        client_.clock(), request, client_.clock().FromWall(deadline));
    if (!news.ok()) return WhyNot(news.status());
    Awaited awaited;
    awaited.recalls = std::move(news->recalls);
    if (!news->group.has_value()) return awaited;
    awaited.cause = news->group->cause;
    awaited.beyond_bytes = news->group->beyond_bytes;
    awaited.ahead = news->group->ahead;
    awaited.pins = client_.MakePins(port_, news->group->grants);
    return awaited;
  }

  absl::Status BeginWaiting(absl::Span<const uint64_t> in_use) override {
    return client_.Post(WaitingRequest{client_.id(),
                                       {in_use.begin(), in_use.end()},
                                       /*begins=*/true});
  }
  void EndWaiting(absl::Span<const uint64_t> in_use) override {
    client_.Post(WaitingRequest{client_.id(), {in_use.begin(), in_use.end()}})
        .IgnoreError();
  }

  absl::StatusOr<std::vector<uint64_t>> AwaitRecalls(Time deadline) override {
    if (IsClosed()) return client_.Closed();
    absl::StatusOr<std::vector<uint64_t>> recalls =
        port_->TakeRecalls(client_.clock(), client_.clock().FromWall(deadline));
    if (!recalls.ok()) return WhyNot(recalls.status());
    return recalls;
  }
  void WakeRecalls() override {
    if (client_.IsOwnProcess()) port_->WakeRecalls();
  }
  void Keep(uint64_t token) override {
    client_.Post(KeepRequest{token}).IgnoreError();
  }
  absl::Status HoldAtMost(int64_t bytes) override {
    return client_.Post(HoldAtMostRequest{client_.id(), bytes});
  }
  void Touch(absl::Span<const TensorId> tensors, int lane) override {
    client_
        .Post(
            TouchRequest{client_.id(), {tensors.begin(), tensors.end()}, lane})
        .IgnoreError();
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
  // Of one that waited while the runtime closed, or was gone.
  absl::Status WhyNot(const absl::Status& status) const {
    return IsClosed() ? client_.Closed() : status;
  }
  bool IsClosed() const { return !client_.IsOwnProcess() || port_->closed(); }

  const QueueClient client_;
  const std::shared_ptr<BytePort> port_;
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
