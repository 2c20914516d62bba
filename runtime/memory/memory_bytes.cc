#include "runtime/memory/memory_bytes.h"

#include <optional>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "runtime/messages/request_checks.h"

namespace terrace {
namespace {

// Each request is a line of the store, by which it is named.
class MemoryBytes final : public ByteQueue {
 public:
  MemoryBytes(std::shared_ptr<MemoryStore> store, int64_t queue, Clock& clock)
      : store_(std::move(store)), queue_(queue), clock_(clock) {}
  ~MemoryBytes() override {
    if (!store_->IsOwnProcess()) return;
    for (const int64_t line : lines_) store_->CloseLine(line);
    store_->CloseLine(queue_);
  }

  absl::StatusOr<uint64_t> Push(absl::Span<const Want> wants,
                                absl::Span<const uint64_t> /*in_use*/,
                                Time deadline, int lane) override {
    if (!store_->IsOwnProcess()) return store_->Closed();
    TERRACE_RETURN_IF_ERROR(CheckLane(lane));
    TERRACE_ASSIGN_OR_RETURN(const int64_t line, store_->OpenRequest(queue_));
    absl::Status pushed =
        store_->Push(line, wants, /*tag=*/0, clock_.FromWall(deadline));
    if (!pushed.ok()) {
      store_->CloseLine(line);
      return pushed;
    }
    MutexLock lock(mutex_);
    lines_.insert(line);
    return static_cast<uint64_t>(line);
  }

  absl::StatusOr<Awaited> Await(uint64_t request, Time deadline) override {
    if (!store_->IsOwnProcess()) return store_->Closed();
    const auto line = static_cast<int64_t>(request);
    if (!Has(line)) {
      return absl::InvalidArgumentError(absl::StrCat("no request ", request));
    }
    Awaited awaited;
    while (true) {
      absl::StatusOr<Ready> ready =
          store_->Next(line, clock_.FromWall(deadline));
      awaited.recalls = store_->TakeRecalls(queue_);
      if (ready.ok()) {
        awaited.pins = std::move(ready->pins);
        Forget(line);
        return awaited;
      }
      // Of this queue's own pins all are others' to a request.
      if (!awaited.recalls.empty()) return awaited;
      if (!absl::IsAborted(ready.status())) return ready.status();
    }
  }

  absl::Status BeginWaiting(absl::Span<const uint64_t> /*in_use*/) override {
    return store_->IsOwnProcess() ? absl::OkStatus() : store_->Closed();
  }
  void EndWaiting(absl::Span<const uint64_t> /*in_use*/) override {}
  absl::StatusOr<std::vector<uint64_t>> AwaitRecalls(Time deadline) override {
    if (!store_->IsOwnProcess()) return store_->Closed();
    return store_->AwaitRecalls(queue_, clock_.FromWall(deadline));
  }
  void WakeRecalls() override {
    if (store_->IsOwnProcess()) store_->Wake(queue_);
  }
  void Keep(uint64_t /*token*/) override {}
  // All is in memory, pinned or not.
  absl::Status HoldAtMost(int64_t bytes) override {
    return store_->IsOwnProcess() ? CheckHeldBytes(bytes) : store_->Closed();
  }
  void Touch(absl::Span<const TensorId> /*tensors*/, int /*lane*/) override {}

  absl::Status BeginStep(int64_t step) override {
    if (!store_->IsOwnProcess()) return store_->Closed();
    return store_->BeginStep(queue_, step);
  }
  absl::Status CommitStep(const StepInfo& info) override {
    if (!store_->IsOwnProcess()) return store_->Closed();
    return store_->EndStep(queue_, info.step);
  }
  absl::Status AbortStep() override {
    if (!store_->IsOwnProcess()) return store_->Closed();
    const absl::Status status = store_->EndStep(queue_, std::nullopt);
    return absl::IsDataLoss(status) ? absl::OkStatus() : status;
  }

 private:
  bool Has(int64_t line) {
    MutexLock lock(mutex_);
    return lines_.contains(line);
  }
  void Forget(int64_t line) {
    {
      MutexLock lock(mutex_);
      lines_.erase(line);
    }
    store_->CloseLine(line);
  }

  const std::shared_ptr<MemoryStore> store_;  // shared with pins
  const int64_t queue_;
  Clock& clock_;
  Mutex mutex_;
  absl::flat_hash_set<int64_t> lines_ ABSL_GUARDED_BY(mutex_);  // of requests
};

}  // namespace

absl::StatusOr<std::unique_ptr<ByteQueue>> OpenMemoryBytes(
    std::shared_ptr<MemoryStore> store, Clock& clock) {
  TERRACE_ASSIGN_OR_RETURN(const int64_t queue,
                           store->OpenLine(INT64_MAX, INT32_MAX));
  return std::make_unique<MemoryBytes>(std::move(store), queue, clock);
}

}  // namespace terrace
