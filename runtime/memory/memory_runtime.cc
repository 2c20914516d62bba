#include "terrace/memory_runtime.h"

#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/status_macros.h"
#include "runtime/memory/memory_bytes.h"
#include "runtime/memory/memory_store.h"

namespace terrace {
namespace {

class MemoryQueue final : public RequestQueue {
 public:
  MemoryQueue(std::shared_ptr<MemoryStore> store, int64_t line, Clock& clock)
      : store_(std::move(store)), line_(line), clock_(clock) {}
  ~MemoryQueue() override {
    if (store_->IsOwnProcess()) store_->CloseLine(line_);
  }

  absl::Status Push(absl::Span<const Want> wants, uint64_t tag,
                    Time deadline) override {
    if (!store_->IsOwnProcess()) return store_->Closed();
    return store_->Push(line_, wants, tag, clock_.FromWall(deadline));
  }
  absl::StatusOr<Ready> Next(Time deadline) override {
    if (!store_->IsOwnProcess()) return store_->Closed();
    return store_->Next(line_, clock_.FromWall(deadline));
  }
  void Wake() override {
    if (store_->IsOwnProcess()) store_->Wake(line_);
  }
  absl::Status BeginStep(int64_t step) override {
    if (!store_->IsOwnProcess()) return store_->Closed();
    return store_->BeginStep(line_, step);
  }
  absl::Status CommitStep(const StepInfo& info) override {
    if (!store_->IsOwnProcess()) return store_->Closed();
    return store_->EndStep(line_, info.step);
  }
  absl::Status AbortStep() override {
    if (!store_->IsOwnProcess()) return store_->Closed();
    const absl::Status status = store_->EndStep(line_, std::nullopt);
    return absl::IsDataLoss(status) ? absl::OkStatus() : status;
  }

 private:
  const std::shared_ptr<MemoryStore> store_;  // shared with pins
  const int64_t line_;
  Clock& clock_;
};

class SharingRuntime final : public MemoryRuntime {
 public:
  SharingRuntime(ThreadPool threads, int node)
      : threads_(std::move(threads)),
        clock_(SystemClock()),
        store_(std::make_shared<MemoryStore>(clock_, node)) {}
  ~SharingRuntime() override {
    // A forked child's copy of the lock may be held by a thread that it lacks,
    // and the memory is not mapped there.
    if (!store_->IsOwnProcess()) {
      new std::shared_ptr<MemoryStore>(store_);
      return;
    }
    // Refused: pins or queues have it still, and it goes with them.
    store_->Close().IgnoreError();
  }

  absl::Status Reserve(int64_t size_bytes) override {
    if (!store_->IsOwnProcess()) return store_->Closed();
    return store_->Reserve(size_bytes, threads_.nearest_node());
  }
  void ReleaseUnused() override {
    if (store_->IsOwnProcess()) store_->ReleaseUnused();
  }

  using Runtime::Register;
  absl::StatusOr<TensorId> Register(const TensorSpec& spec) override {
    if (!store_->IsOwnProcess()) return store_->Closed();
    return store_->Register(spec);
  }
  absl::Status Unregister(TensorId tensor) override {
    if (!store_->IsOwnProcess()) return store_->Closed();
    return store_->Unregister(tensor);
  }
  using Runtime::OpenQueue;
  absl::StatusOr<std::unique_ptr<RequestQueue>> OpenQueue(
      int64_t slot_bytes, int slots, Time /*deadline*/) override {
    if (!store_->IsOwnProcess()) return store_->Closed();
    const absl::StatusOr<int64_t> line = store_->OpenLine(slot_bytes, slots);
    if (!line.ok()) return line.status();
    return std::make_unique<MemoryQueue>(store_, *line, clock_);
  }
  absl::StatusOr<std::unique_ptr<ByteQueue>> OpenBytes(
      int64_t window_bytes, absl::string_view tier) override {
    if (!store_->IsOwnProcess()) return store_->Closed();
    if (window_bytes <= 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("a window of ", window_bytes, " bytes"));
    }
    if (!tier.empty() && tier != TierKindName(TierKind::kDram)) {
      return absl::InvalidArgumentError(
          absl::StrCat("a queue at '", tier, "': customers work at dram"));
    }
    return OpenMemoryBytes(store_, clock_);
  }
  absl::StatusOr<Pin> Acquire(TensorId tensor, Access access,
                              Time deadline) override {
    absl::StatusOr<std::unique_ptr<RequestQueue>> queue =
        OpenQueue(INT64_MAX, 1, deadline);
    if (!queue.ok()) return queue.status();
    absl::Status pushed = (*queue)->Push({{tensor, access}}, 0, deadline);
    if (!pushed.ok()) return pushed;
    absl::StatusOr<Ready> ready = (*queue)->Next(deadline);
    if (!ready.ok()) return ready.status();
    if (!ready->pins.ok()) return ready->pins.status();
    return std::move(ready->pins->front());
  }
  void Prefetch(absl::Span<const TensorId> /*tensors*/) override {}

  Stats GetStats() const override {
    return store_->IsOwnProcess() ? store_->GetStats() : Stats();
  }
  absl::Status Close(Time /*deadline*/) override {
    return store_->IsOwnProcess() ? store_->Close() : store_->Closed();
  }
  ThreadPool thread_pool() const override { return threads_; }

 private:
  const ThreadPool threads_;  // with other runtimes
  Clock& clock_;
  const std::shared_ptr<MemoryStore> store_;  // with queues and pins
};

}  // namespace

std::unique_ptr<MemoryRuntime> MemoryRuntime::Create(ThreadPool threads,
                                                     int node) {
  return std::make_unique<SharingRuntime>(std::move(threads), node);
}

}  // namespace terrace
