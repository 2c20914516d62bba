#include "runtime/local_runtime.h"

#include <atomic>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "base/threads/own_thread.h"
#include "base/threads/short_slices.h"
#include "runtime/background_thread.h"
#include "runtime/messages/inbox.h"
#include "runtime/messages/request_checks.h"
#include "runtime/messages/request_queue.h"
#include "tiers/left_behind.h"

namespace terrace {
namespace {

constexpr absl::Duration kDestructorPatience = absl::Seconds(30);

class InProcessRuntime final : public LocalRuntime {
 public:
  InProcessRuntime(LocalRuntimeParts parts, std::unique_ptr<IoPaths> io)
      : clock_(*parts.clock),
        arena_(std::move(parts.arena)),
        pinned_(std::make_shared<PinnedMapping>(std::move(parts.pinned))),
        executor_(std::move(parts.executor)),
        machine_profile_(std::move(parts.machine_profile)),
        sizes_(std::make_shared<TensorSizes>()) {
    CoreParts core;
    core.clock = &clock_;
    core.executor = executor_.get();
    core.arena = arena_->bytes();
    core.memory = std::move(parts.memory);
    core.io = std::move(io);
    core.device = std::move(parts.device);
    for (LocalMapped& each : parts.mapped) {
      mediums_.push_back(each.medium);
      core.mapped.push_back({std::move(each.spec), std::move(each.medium),
                             each.prior, Background(each.background)});
    }
    for (LocalPath& path : parts.paths) {
      core.paths.push_back(
          {std::move(path.file), path.prior, Background(path.background)});
    }
    core.eviction = std::move(parts.eviction);
    core.prefetch = parts.prefetch;
    core.io_timeout = parts.io_timeout;
    core.transcript = parts.transcript;
    mover_ = std::make_unique<Mover>(std::move(core));
    inbox_ = mover_->shared_inbox();
    if (!parts.start_thread) return;
    thread_ = StartThread("terrace-mover", [this, ended = loop_ended_] {
      TakeShortSlices();
      Loop();
      ended->Set(true);
    });
  }

  ~InProcessRuntime() override {
    if (!inbox_->IsOwnProcess()) {
      // A forked child has no mover thread, and the files are its parent's.
      new std::thread(std::move(thread_));
      mover_.release();
      executor_.release();
      for (auto& thread : background_) thread.release();
      LeaveBehind(std::move(pinned_));
      LeaveBehind(std::move(arena_));
      return;
    }
    if (!closed_) {
      DoClose(clock_.Now() + kDestructorPatience, /*force=*/true).IgnoreError();
    }
    if (thread_.joinable()) EndThread();
    if (mover_->abandoned()) {
      arena_->Leak();
      LeaveBehind(pinned_);
    }
    mover_.reset();
    executor_.reset();  // drains: its tasks refer to arena and mediums
    background_.clear();
  }

  absl::StatusOr<TensorId> Register(const TensorSpec& spec) override {
    const absl::StatusOr<std::vector<TensorId>> ids =
        Register(absl::MakeConstSpan(&spec, 1));
    if (!ids.ok()) return ids.status();
    return ids->front();
  }

  absl::StatusOr<std::vector<TensorId>> Register(
      absl::Span<const TensorSpec> specs) override {
    for (const TensorSpec& spec : specs) {
      TERRACE_RETURN_IF_ERROR(CheckSpec(spec));
    }
    RegisterRequest message;
    message.specs.assign(specs.begin(), specs.end());
    message.reply =
        std::make_shared<Reply<absl::StatusOr<std::vector<TensorId>>>>();
    auto reply = message.reply;
    if (!inbox_->Post(std::move(message))) return inbox_->Closed();
    absl::StatusOr<std::vector<TensorId>> ids = reply->Await(clock_);
    if (ids.ok()) sizes_->Set(*ids, specs);
    return ids;
  }

  absl::Status Unregister(TensorId tensor) override {
    auto reply = std::make_shared<Reply<absl::Status>>();
    if (!inbox_->Post(UnregisterRequest{tensor, reply})) {
      return inbox_->Closed();
    }
    absl::Status status = reply->Await(clock_);
    if (status.ok()) sizes_->Erase(tensor);
    return status;
  }

  absl::StatusOr<std::unique_ptr<RequestQueue>> OpenQueue(
      int64_t slot_bytes, int slots, Time deadline) override {
    return OpenQueue(slot_bytes, slots, deadline, TierKind::kDram);
  }

  absl::StatusOr<std::unique_ptr<RequestQueue>> OpenQueue(
      int64_t slot_bytes, int slots, Time deadline, TierKind tier) override {
    if (tier != TierKind::kDram && tier != TierKind::kHbm) {
      return absl::InvalidArgumentError(
          absl::StrCat("a queue at ", TierKindName(tier),
                       ": customers work at dram and hbm"));
    }
    if (slot_bytes <= 0 || slots <= 0) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a window of ", slots, " slots of ", slot_bytes, " bytes"));
    }
    OpenRequest message;
    message.slot_bytes = slot_bytes;
    message.slots = slots;
    message.deadline = clock_.FromWall(deadline);
    message.tier = tier;
    return Open(std::move(message));
  }

  absl::StatusOr<std::unique_ptr<RequestQueue>> OpenQueueFor(
      TensorId tensor, Time deadline) override {
    if (!inbox_->IsOwnProcess()) return inbox_->Closed();
    OpenRequest message;
    message.slot_bytes = sizes_->Get(tensor);
    if (message.slot_bytes < 0) return NoTensor(tensor);
    message.slots = 1;
    message.deadline = clock_.FromWall(deadline);
    message.only = tensor;
    return Open(std::move(message));
  }

  absl::StatusOr<Pin> Acquire(TensorId tensor, Access access,
                              Time deadline) override {
    if (!inbox_->IsOwnProcess()) return inbox_->Closed();
    const int64_t size = sizes_->Get(tensor);
    if (size < 0) return NoTensor(tensor);
    // Of all three together, whatever is done to the wall clock meanwhile.
    const absl::Time end = clock_.FromWall(deadline);
    absl::StatusOr<std::unique_ptr<RequestQueue>> queue =
        OpenQueue(size, 1, clock_.ToWall(end));
    if (!queue.ok()) return queue.status();
    absl::Status pushed =
        (*queue)->Push({{tensor, access}}, 0, clock_.ToWall(end));
    if (!pushed.ok()) return pushed;
    absl::StatusOr<Ready> ready = (*queue)->Next(clock_.ToWall(end));
    if (!ready.ok()) return ready.status();
    if (!ready->pins.ok()) return ready->pins.status();
    return std::move(ready->pins->front());
  }

  absl::Status GrowMemory(int64_t bytes) override {
    if (!inbox_->IsOwnProcess()) return inbox_->Closed();
    if (!pinned_->bytes().empty()) {
      return absl::UnimplementedError(
          "memory cannot grow that a device copies from");
    }
    MutexLock lock(growth_mutex_);
    const size_t before = arena_->bytes().size();
    TERRACE_RETURN_IF_ERROR(arena_->Grow(bytes));
    GrowRequest message;
    message.bytes = static_cast<int64_t>(arena_->bytes().size() - before);
    message.reply = std::make_shared<Reply<absl::Status>>();
    const auto reply = message.reply;
    if (!inbox_->Post(std::move(message))) return inbox_->Closed();
    return reply->Await(clock_);
  }

  void Prefetch(absl::Span<const TensorId> tensors) override {
    inbox_->Post(PrefetchRequest{{tensors.begin(), tensors.end()}});
  }

  Stats GetStats() const override {
    if (!inbox_->IsOwnProcess()) return Stats();
    auto reply = std::make_shared<Reply<Stats>>();
    Stats stats = inbox_->Post(StatsRequest{reply}) ? reply->Await(clock_)
                                                    : mover_->final_stats();
    stats.machine_profile = machine_profile_;
    stats.host.huge_page_share = arena_->huge_page_share();
    stats.host.numa_node_asked = arena_->asked_node();
    stats.host.numa_node_found = arena_->found_node();
    return stats;
  }

  absl::Status Close(Time deadline) override {
    return DoClose(clock_.FromWall(deadline), /*force=*/false);
  }

  Clock& clock() override { return clock_; }
  Executor& executor() override { return *executor_; }
  Mover& mover() override { return *mover_; }

 private:
  static absl::Status NoTensor(TensorId tensor) {
    return absl::InvalidArgumentError(absl::StrCat("no tensor ", tensor.value));
  }
  absl::StatusOr<std::unique_ptr<RequestQueue>> Open(OpenRequest message) {
    message.reply = std::make_shared<Reply<absl::StatusOr<OpenedQueue>>>();
    const auto reply = message.reply;
    const int64_t slot_bytes = message.slot_bytes;
    const int slots = message.slots;
    if (!inbox_->Post(std::move(message))) return inbox_->Closed();
    absl::StatusOr<OpenedQueue> opened = reply->Await(clock_);
    if (!opened.ok()) return opened.status();
    return MakeRequestQueue(*std::move(opened), slot_bytes, slots, clock_,
                            inbox_, sizes_);
  }

  // A tier's own, or a thread.
  Executor* Background(std::unique_ptr<Executor>& given) {
    background_.push_back(given != nullptr ? std::move(given)
                                           : MakeBackgroundThread());
    return background_.back().get();
  }

  // `deadline` is by clock_.
  absl::Status DoClose(absl::Time deadline, bool force) {
    if (!inbox_->IsOwnProcess()) return inbox_->Closed();
    if (closed_) return absl::OkStatus();
    CloseRequest message;
    message.deadline = deadline;
    message.force = force;
    message.reply = std::make_shared<Reply<absl::Status>>();
    auto reply = message.reply;
    if (!inbox_->Post(std::move(message))) return absl::OkStatus();
    absl::Status status = reply->Await(clock_);
    closed_ = !absl::IsFailedPrecondition(status);
    return status;
  }

  void Loop() {
    while (true) {
      const absl::Time next = mover_->RunOnce();
      if (mover_->closed()) return;
      if (next > clock_.Now()) mover_->Wait(next);
    }
  }

  // A thread that leaves transfers of a ring behind may not get out of the
  // kernel before they end: it is not waited for.
  void EndThread() {
    loop_ended_->Await(clock_);
    if (mover_->abandoned()) {
      thread_.detach();
    } else {
      thread_.join();
    }
  }

  Clock& clock_;
  Mutex growth_mutex_;  // of the arena; held while it is populated
  std::shared_ptr<HostArena> arena_;
  std::shared_ptr<PinnedMapping> pinned_;
  std::vector<std::shared_ptr<Medium>> mediums_;
  std::unique_ptr<Executor> executor_;
  std::vector<std::unique_ptr<Executor>> background_;  // per resting tier
  const std::string machine_profile_;
  std::unique_ptr<Mover> mover_;
  std::shared_ptr<Inbox> inbox_;
  const std::shared_ptr<TensorSizes> sizes_;
  // Set by the thread that closed; read by later callers.
  std::atomic<bool> closed_ = false;
  // The thread's last word, which it shares as it may outlive this object.
  const std::shared_ptr<Reply<bool>> loop_ended_ =
      std::make_shared<Reply<bool>>();
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace

absl::StatusOr<std::unique_ptr<LocalRuntime>> LocalRuntime::Start(
    LocalRuntimeParts parts) {
  auto io = std::make_unique<IoPaths>(std::move(parts.engine), *parts.clock);
  for (const LocalPath& path : parts.paths) {
    TERRACE_RETURN_IF_ERROR(
        io->AddPath(path.file->info().file, path.file->fd(), path.queue)
            .status());
  }
  io->RegisterArena(parts.arena->bytes());
  if (io->engine_info().buffers_registered || !parts.pinned.bytes().empty()) {
    TERRACE_RETURN_IF_ERROR(parts.arena->CheckPinned());
  }
  try {
    return std::make_unique<InProcessRuntime>(std::move(parts), std::move(io));
  } catch (const std::system_error& error) {
    return absl::ResourceExhaustedError(
        absl::StrCat("cannot start the mover's thread: ", error.what()));
  }
}

int64_t ResidentBytes(int64_t size_bytes) {
  constexpr int64_t kMost = INT64_MAX - kTensorHeaderBytes - kBlockBytes + 1;
  if (size_bytes > kMost) return INT64_MAX;
  return kTensorHeaderBytes + RoundUp(size_bytes, kBlockBytes);
}

int64_t WindowBytes(int64_t slot_bytes, int slots) {
  const int64_t bytes = ResidentBytes(slot_bytes);
  if (slots > 0 && bytes > INT64_MAX / slots) return INT64_MAX;
  return bytes * slots;
}

int64_t StagingBytes(int64_t slot_bytes, int slots) {
  return WindowBytes(slot_bytes, 2 * StagingSlots(slots));
}

}  // namespace terrace
