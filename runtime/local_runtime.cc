#include "runtime/local_runtime.h"

#include <atomic>
#include <optional>
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
#include "runtime/client/asking_runtime.h"
#include "runtime/crank.h"
#include "runtime/lent_executor.h"
#include "runtime/loop_end.h"
#include "runtime/messages/inbox.h"
#include "tiers/left_behind.h"
#include "tiers/memory/arena_medium.h"
#include "tiers/memory/spill/shared_spill.h"

namespace terrace {
namespace {

constexpr absl::Duration kDestructorPatience = absl::Seconds(30);

TierBases BasesOf(const LocalRuntimeParts& parts, const HostArena& arena) {
  TierBases bases;
  bases[kDramTier] = {.data = arena.bytes().data()};
  for (size_t i = 0; i < parts.other_memories.size(); ++i) {
    bases[{TierKind::kDram, 1 + static_cast<int>(i)}] = {
        .data = parts.other_memories[i].arena->bytes().data()};
  }
  for (size_t k = 0; k < parts.devices.size(); ++k) {
    bases[{TierKind::kHbm, static_cast<int>(k)}] = {
        .address = parts.devices[k].address};
  }
  return bases;
}

class InProcessRuntime final : public AskingRuntime<LocalRuntime> {
 public:
  InProcessRuntime(LocalRuntimeParts parts, std::unique_ptr<IoPaths> io)
      : clock_(*parts.clock),
        arena_(std::move(parts.arena)),
        pinned_(std::make_shared<PinnedMapping>(std::move(parts.pinned))),
        executor_(std::make_unique<LentExecutor>(std::move(parts.pool))),
        machine_profile_(std::move(parts.machine_profile)) {
    TierBases bases = BasesOf(parts, *arena_);
    CoreParts core;
    core.clock = &clock_;
    core.executor = executor_.get();
    core.arena = arena_->bytes();
    core.memory = std::move(parts.memory);
    core.spill = std::move(parts.spill);
    core.pages = std::move(parts.pages);
    if (core.spill == nullptr && arena_->spill().size_bytes > 0) {
      core.spill = std::make_shared<SharedSpill>(*arena_);
    }
    core.io = std::move(io);
    const bool has_devices = !parts.devices.empty();
    core.devices = std::move(parts.devices);
    for (LocalMemory& each : parts.other_memories) {
      const absl::Span<std::byte> bytes = each.arena->bytes();
      mediums_.push_back(
          std::make_shared<ArenaMedium>(TierName(each.spec), bytes));
      core.other_memories.push_back(
          {bytes, each.spec, mediums_.back(), std::move(each.eviction)});
      other_arenas_.push_back(std::move(each.arena));
      other_pinned_.push_back(
          std::make_shared<PinnedMapping>(std::move(each.pinned)));
    }
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
    core.heartbeat = std::move(parts.heartbeat);
    core.keeper = parts.keeper;
    mover_ = std::make_unique<Mover>(std::move(core));
    crank_ = std::make_shared<Crank>(*mover_);
    inbox_ = mover_->inbox();
    others_serve_ = parts.start_thread && !has_devices;
    client_.emplace(clock_, inbox_, mover_->ports().Open(), std::move(bases),
                    others_serve_ ? crank_ : nullptr);
    if (!parts.start_thread) return;
    thread_ = StartThread("terrace-mover", [this, ended = loop_ended_] {
      TakeShortSlices();
      Loop();
      ended->Set();
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
      for (auto& each : other_pinned_) LeaveBehind(std::move(each));
      for (auto& each : other_arenas_) LeaveBehind(std::move(each));
      return;
    }
    if (!closed_) {
      DoClose(clock_.Now() + kDestructorPatience, /*force=*/true).IgnoreError();
    }
    if (thread_.joinable()) EndThread();
    if (mover_->abandoned()) {
      arena_->Leak();
      LeaveBehind(pinned_);
      for (const auto& each : other_arenas_) each->Leak();
      for (const auto& each : other_pinned_) LeaveBehind(each);
    }
    crank_->Leave();
    mover_.reset();
    executor_.reset();  // once its tasks, which refer to these, have ended
    background_.clear();
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
    return client_->Grow(static_cast<int64_t>(arena_->bytes().size() - before));
  }

  Stats GetStats() const override {
    if (!inbox_->IsOwnProcess()) return Stats();
    absl::StatusOr<Stats> now = client_->Ask<Stats>(StatsRequest());
    Stats stats = now.ok() ? *std::move(now) : mover_->final_stats();
    AddOwnStats(&stats);
    return stats;
  }

  absl::Status Close(Time deadline) override {
    return DoClose(clock_.FromWall(deadline), /*force=*/false);
  }

  absl::Status Restore(ClientId client, RuntimeImage image) override {
    return client_->Restore(client, std::move(image));
  }

  void PostAndServe(absl::FunctionRef<void()> post) noexcept override {
    if (others_serve_) return crank_->PostAndServe(post);
    post();
  }

  ThreadPool thread_pool() const override { return executor_->pool(); }
  Clock& clock() override { return clock_; }
  Mover& mover() override { return *mover_; }
  HostArena& arena() override { return *arena_; }
  void AddOwnStats(Stats* stats) const override {
    stats->machine_profile = machine_profile_;
    stats->host.huge_page_share = arena_->huge_page_share();
    stats->host.numa_node_asked = arena_->asked_node();
    stats->host.numa_node_found = arena_->found_node();
  }

 private:
  RuntimeClient& client() override { return *client_; }

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
    const absl::Status status = client_->Close(deadline, force);
    closed_ = !absl::IsFailedPrecondition(status);
    return status;
  }

  void Loop() {
    while (true) {
      const absl::Time next = crank_->Turn();
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
  std::vector<std::shared_ptr<HostArena>> other_arenas_;
  std::vector<std::shared_ptr<PinnedMapping>> other_pinned_;
  std::vector<std::shared_ptr<Medium>> mediums_;
  std::unique_ptr<LentExecutor> executor_;
  std::vector<std::unique_ptr<Executor>> background_;  // per resting tier
  const std::string machine_profile_;
  std::unique_ptr<Mover> mover_;
  std::shared_ptr<Crank> crank_;  // of it
  // What a device is told it is told by one thread.
  bool others_serve_ = false;
  std::shared_ptr<Inbox> inbox_;
  std::optional<RuntimeClient> client_;  // this process, the first one
  // Set by the thread that closed; read by later callers.
  std::atomic<bool> closed_ = false;
  // Shared with the thread, which may outlive this object.
  const std::shared_ptr<LoopEnd> loop_ended_ = std::make_shared<LoopEnd>();
  std::thread thread_;  // last: it uses all of the above
};

}  // namespace

absl::StatusOr<std::unique_ptr<LocalRuntime>> LocalRuntime::Start(
    LocalRuntimeParts parts) {
  auto io = std::make_unique<IoPaths>(std::move(parts.engine), *parts.clock);
  for (const LocalPath& path : parts.paths) {
    TERRACE_RETURN_IF_ERROR(io->AddPath(path.file->info().file, path.file->fd(),
                                        path.queue, path.link)
                                .status());
  }
  // What is registered has all of its pages.
  const bool is_whole = parts.pages == nullptr || parts.pages->has_all();
  if (is_whole) io->RegisterArena(parts.arena->bytes());
  if (io->engine_info().buffers_registered || !parts.pinned.bytes().empty()) {
    TERRACE_RETURN_IF_ERROR(parts.arena->CheckPinned());
  }
  for (const LocalMemory& each : parts.other_memories) {
    if (each.pinned.bytes().empty()) continue;
    TERRACE_RETURN_IF_ERROR(each.arena->CheckPinned());
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
