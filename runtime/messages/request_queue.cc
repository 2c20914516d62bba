#include "runtime/messages/request_queue.h"

#include <utility>

#include "base/status_macros.h"
#include "runtime/messages/request_checks.h"

namespace terrace {
namespace {

class PostedQueue final : public RequestQueue {
 public:
  PostedQueue(OpenedQueue opened, int64_t slot_bytes, int slots, Clock& clock,
              std::shared_ptr<Inbox> inbox,
              std::shared_ptr<const TensorSizes> sizes)
      : id_(opened.id),
        port_(std::move(opened.port)),
        slot_bytes_(slot_bytes),
        slots_(slots),
        clock_(clock),
        inbox_(std::move(inbox)),
        sizes_(std::move(sizes)) {}

  ~PostedQueue() override {
    // In a forked child the port's lock may be held by a thread it lacks.
    if (!inbox_->IsOwnProcess()) return;
    inbox_->Post(CloseQueueRequest{id_});
    port_->Close();
  }

  absl::Status Push(absl::Span<const Want> wants, uint64_t tag,
                    Time deadline) override {
    if (IsClosed()) return inbox_->Closed();
    TERRACE_RETURN_IF_ERROR(
        CheckWants(wants, slots_, slot_bytes_,
                   [this](TensorId tensor) { return sizes_->Get(tensor); }));
    PushRequest message;
    message.queue = id_;
    message.wants.assign(wants.begin(), wants.end());
    message.tag = tag;
    message.deadline = clock_.FromWall(deadline);
    if (!inbox_->Post(std::move(message))) return inbox_->Closed();
    ++outstanding_;
    return absl::OkStatus();
  }

  absl::StatusOr<Ready> Next(Time deadline) override {
    if (IsClosed()) return inbox_->Closed();
    if (outstanding_ == 0) {
      return absl::FailedPreconditionError("nothing is pushed");
    }
    absl::StatusOr<Ready> ready =
        port_->Take(clock_, inbox_->posted(), clock_.FromWall(deadline));
    if (ready.ok()) --outstanding_;
    return ready;
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
  bool IsClosed() const { return !inbox_->IsOwnProcess() || port_->closed(); }

  absl::Status Ask(StepRequest::Kind kind, int64_t step) {
    auto reply = std::make_shared<Reply<absl::Status>>();
    if (!inbox_->Post(StepRequest{kind, id_, step, reply}))
      return inbox_->Closed();
    return reply->Await(clock_);
  }

  const int64_t id_;
  const std::shared_ptr<QueuePort> port_;
  const int64_t slot_bytes_;
  const int slots_;
  Clock& clock_;
  const std::shared_ptr<Inbox> inbox_;
  const std::shared_ptr<const TensorSizes> sizes_;
  int64_t outstanding_ = 0;  // pushed and not yet returned by Next
};

}  // namespace

void TensorSizes::Set(absl::Span<const TensorId> ids,
                      absl::Span<const TensorSpec> specs) {
  MutexLock lock(mutex_);
  for (size_t i = 0; i < ids.size(); ++i) {
    sizes_.Put(ids[i].value, specs[i].size_bytes);
  }
}

void TensorSizes::Erase(TensorId id) {
  MutexLock lock(mutex_);
  sizes_.Erase(id.value);
}

int64_t TensorSizes::Get(TensorId id) const {
  MutexLock lock(mutex_);
  const int64_t* const size = sizes_.Find(id.value);
  return size == nullptr ? -1 : *size;
}

std::unique_ptr<RequestQueue> MakeRequestQueue(
    OpenedQueue opened, int64_t slot_bytes, int slots, Clock& clock,
    std::shared_ptr<Inbox> inbox, std::shared_ptr<const TensorSizes> sizes) {
  return std::make_unique<PostedQueue>(std::move(opened), slot_bytes, slots,
                                       clock, std::move(inbox),
                                       std::move(sizes));
}

}  // namespace terrace
