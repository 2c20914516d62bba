#include "tests/support/map_runtime.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/check.h"
#include "base/mutex.h"
#include "base/threads/pool_threads.h"

namespace terrace {
namespace {

constexpr auto kBlockPage = static_cast<size_t>(kBlockBytes);
// What a pin for kOverwrite shows: NaNs, so that bytes left unwritten show.
constexpr int kGarbage = 0xFF;

}  // namespace

// The contents and the pins; outlives the runtime as long as pins do.
class MapStore : public PinOwner,
                 public std::enable_shared_from_this<MapStore> {
 public:
  Pin Take(TensorId tensor, int64_t size_bytes, Access access, int* held) {
    auto buffer = std::make_unique<Buffer>(static_cast<size_t>(size_bytes));
    const absl::Span<std::byte> data = buffer->data();
    MutexLock lock(mutex_);
    const auto found = contents_.find(tensor.value);
    if (access == Access::kOverwrite) {
      std::memset(data.data(), kGarbage, data.size());
    } else if (found == contents_.end()) {
      Violate(absl::StrCat("tensor ", tensor.value, " was never written"));
    } else {
      std::copy(found->second.begin(), found->second.end(), data.begin());
      ++reads_[tensor.value];
    }
    const uint64_t token = next_token_++;
    held_.emplace(token, Held{tensor, access, std::move(buffer), held});
    if (held != nullptr) ++*held;
    return Pin(shared_from_this(), token, tensor, data);
  }

  void EndPin(uint64_t token, PinEnd end) override {
    MutexLock lock(mutex_);
    const auto found = held_.find(token);
    TERRACE_CHECK(found != held_.end());
    Held& held = found->second;
    const absl::Span<std::byte> data = held.buffer->data();
    std::vector<std::byte>& contents = contents_[held.tensor.value];
    if (held.access == Access::kRead) {
      if (!std::equal(data.begin(), data.end(), contents.begin(),
                      contents.end())) {
        Violate(absl::StrCat("a read pin of tensor ", held.tensor.value,
                             " was written to"));
      }
    } else if (end == PinEnd::kPublish) {
      contents.assign(data.begin(), data.end());
      ++writes_[held.tensor.value];
    }
    if (held.count != nullptr) --*held.count;
    held_.erase(found);
  }

  // Pins of the queue that counts in `count`.
  int HeldBy(const int& count) const {
    MutexLock lock(mutex_);
    return count;
  }
  bool IsHeld(TensorId tensor) const {
    MutexLock lock(mutex_);
    for (const auto& [token, held] : held_) {
      if (held.tensor == tensor) return true;
    }
    return false;
  }
  void Forget(TensorId tensor) {
    MutexLock lock(mutex_);
    contents_.erase(tensor.value);
  }
  int64_t pins() const {
    MutexLock lock(mutex_);
    return static_cast<int64_t>(held_.size());
  }
  int64_t Count(bool writes, TensorId tensor) const {
    MutexLock lock(mutex_);
    const auto& counts = writes ? writes_ : reads_;
    const auto found = counts.find(tensor.value);
    return found == counts.end() ? 0 : found->second;
  }
  std::vector<std::string> violations() const {
    MutexLock lock(mutex_);
    return violations_;
  }
  void Note(std::string what) {
    MutexLock lock(mutex_);
    Violate(std::move(what));
  }

 private:
  // A copy of a tensor's bytes, page-aligned as pins promise.
  class Buffer {
   public:
    explicit Buffer(size_t size) : bytes_(size + kBlockPage), size_(size) {}
    absl::Span<std::byte> data() {
      const auto address = reinterpret_cast<uintptr_t>(bytes_.data());
      return {bytes_.data() + (kBlockPage - address % kBlockPage) % kBlockPage,
              size_};
    }

   private:
    std::vector<std::byte> bytes_;
    size_t size_;
  };

  struct Held {
    TensorId tensor;
    Access access;
    std::unique_ptr<Buffer> buffer;
    int* count;  // of the queue it came from, guarded by mutex_
  };

  void Violate(std::string what) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    violations_.push_back(std::move(what));
  }

  mutable Mutex mutex_;
  uint64_t next_token_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<int64_t, std::vector<std::byte>> contents_ ABSL_GUARDED_BY(mutex_);
  std::map<uint64_t, Held> held_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, int64_t> reads_ ABSL_GUARDED_BY(mutex_);
  std::map<int64_t, int64_t> writes_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> violations_ ABSL_GUARDED_BY(mutex_);
};

class MapQueue final : public RequestQueue {
 public:
  MapQueue(MapRuntime& runtime, int slots, int64_t window_bytes)
      : runtime_(runtime),
        slots_(slots),
        window_bytes_(window_bytes),
        random_(runtime.behaviour_.seed.value_or(0)) {
    runtime_.queues_.push_back(this);
  }
  ~MapQueue() override {
    TERRACE_CHECK(runtime_.store_->HeldBy(held_) == 0);
    runtime_.window_bytes_ -= window_bytes_;
    std::erase(runtime_.queues_, this);
  }

  bool Wants(TensorId tensor) const {
    for (const Group& group : groups_) {
      for (const Want& want : group.wants) {
        if (want.tensor == tensor) return true;
      }
    }
    return false;
  }

  absl::Status Push(absl::Span<const Want> wants, uint64_t tag, Time) override {
    if (runtime_.closed_) return MapRuntime::Closed();
    if (wants.empty() || static_cast<int>(wants.size()) > slots_) {
      return absl::InvalidArgumentError("an empty or too large group");
    }
    for (const Want& want : wants) {
      if (!runtime_.Knows(want.tensor)) {
        return absl::InvalidArgumentError("no such tensor");
      }
    }
    absl::Status status =
        runtime_.Enter(MapRuntime::CallKind::kPush, wants.front().tensor);
    if (!status.ok()) return status;
    if (static_cast<int>(groups_.size()) >= runtime_.behaviour_.most_pushed) {
      return absl::UnavailableError("the queue is full");
    }
    groups_.push_back({{wants.begin(), wants.end()}, tag});
    return absl::OkStatus();
  }

  absl::StatusOr<Ready> Next(Time deadline) override {
    if (runtime_.closed_) return MapRuntime::Closed();
    if (groups_.empty()) {
      return absl::FailedPreconditionError("nothing is pushed");
    }
    if (runtime_.store_->HeldBy(held_) >= slots_) {
      runtime_.store_->Note("Next while all slots are pinned");
      return absl::FailedPreconditionError("only own pins block it");
    }
    const bool seeded = runtime_.behaviour_.seed.has_value();
    const bool idle =
        seeded && deadline <= runtime_.clock_.WallNow() && random_() % 3 == 0;
    if (runtime_.stalled_ || idle) {
      return absl::DeadlineExceededError("nothing is ready");
    }
    const size_t chosen =
        seeded ? random_() % std::min<size_t>(groups_.size(),
                                              static_cast<size_t>(slots_))
               : 0;
    Group group = std::move(groups_[chosen]);
    groups_.erase(groups_.begin() + static_cast<std::ptrdiff_t>(chosen));
    Ready ready;
    ready.tag = group.tag;
    ready.cause = WaitCause::kRead;
    const absl::Status status = runtime_.Enter(MapRuntime::CallKind::kReady,
                                               group.wants.front().tensor);
    if (!status.ok()) {
      ready.pins = status;
      return ready;
    }
    std::vector<Pin> pins;
    for (const Want& want : group.wants) {
      const auto id = static_cast<size_t>(want.tensor.value);
      pins.push_back(runtime_.store_->Take(
          want.tensor, runtime_.tensors_[id].size_bytes, want.access, &held_));
    }
    ready.pins = std::move(pins);
    return ready;
  }

  void Wake() override {}  // Next never waits

  absl::Status BeginStep(int64_t step) override {
    if (runtime_.closed_) return MapRuntime::Closed();
    if (open_) {
      runtime_.store_->Note("BeginStep while a step is open");
      return absl::FailedPreconditionError("a step is open");
    }
    absl::Status status =
        runtime_.Enter(MapRuntime::CallKind::kBegin, TensorId{});
    if (!status.ok()) return status;
    open_ = true;
    step_ = step;
    return absl::OkStatus();
  }

  absl::Status CommitStep(const StepInfo& info) override {
    if (runtime_.closed_) return MapRuntime::Closed();
    if (!open_ || info.step != step_ || !groups_.empty() ||
        runtime_.store_->HeldBy(held_) > 0) {
      runtime_.store_->Note("CommitStep of a step that is not over");
    }
    open_ = false;
    return runtime_.Enter(MapRuntime::CallKind::kCommit, TensorId{});
  }

  absl::Status AbortStep() override {
    if (runtime_.closed_) return MapRuntime::Closed();
    open_ = false;
    return absl::OkStatus();
  }

 private:
  struct Group {
    std::vector<Want> wants;
    uint64_t tag;
  };

  MapRuntime& runtime_;
  const int slots_;
  const int64_t window_bytes_;
  std::mt19937_64 random_;
  std::deque<Group> groups_;
  bool open_ = false;
  int64_t step_ = 0;
  int held_ = 0;  // guarded by the store's lock
};

MapRuntime::MapRuntime(const Behaviour& behaviour, Clock& clock,
                       Executor& executor)
    : behaviour_(behaviour),
      clock_(clock),
      // It is the caller's.
      pool_(MakeThreadPool({&executor, [](Executor*) {}})),
      store_(std::make_shared<MapStore>()) {}

MapRuntime::~MapRuntime() { TERRACE_CHECK(window_bytes_ == 0); }

std::vector<std::string> MapRuntime::violations() const {
  return store_->violations();
}

int64_t MapRuntime::reads(TensorId tensor) const {
  return store_->Count(false, tensor);
}

int64_t MapRuntime::writes(TensorId tensor) const {
  return store_->Count(true, tensor);
}

int64_t MapRuntime::pins() const { return store_->pins(); }

absl::StatusOr<TensorId> MapRuntime::Register(const TensorSpec& spec) {
  if (closed_) return Closed();
  if (spec.name.empty() || spec.size_bytes <= 0) {
    return absl::InvalidArgumentError("a tensor without a name or bytes");
  }
  for (const TensorSpec& tensor : tensors_) {
    if (tensor.name == spec.name) return absl::AlreadyExistsError(spec.name);
  }
  tensors_.push_back(spec);
  return TensorId{static_cast<int64_t>(tensors_.size()) - 1};
}

absl::Status MapRuntime::Unregister(TensorId tensor) {
  if (!Knows(tensor)) return absl::InvalidArgumentError("no such tensor");
  bool wanted = store_->IsHeld(tensor);
  for (const MapQueue* queue : queues_) wanted |= queue->Wants(tensor);
  if (wanted) return absl::FailedPreconditionError("pinned or wanted");
  store_->Forget(tensor);
  tensors_[static_cast<size_t>(tensor.value)].name.clear();
  return absl::OkStatus();
}

bool MapRuntime::Knows(TensorId tensor) const {
  return tensor.value >= 0 &&
         tensor.value < static_cast<int64_t>(tensors_.size()) &&
         !tensors_[static_cast<size_t>(tensor.value)].name.empty();
}

absl::StatusOr<std::unique_ptr<RequestQueue>> MapRuntime::OpenQueue(
    int64_t slot_bytes, int slots, Time) {
  if (closed_) return Closed();
  const int64_t bytes = WindowBytes(slot_bytes, slots);
  if (window_bytes_ + bytes > behaviour_.budget_bytes) {
    return absl::ResourceExhaustedError(
        absl::StrCat("windows of ", window_bytes_ + bytes,
                     " bytes exceed the budget of ", behaviour_.budget_bytes));
  }
  window_bytes_ += bytes;
  return std::make_unique<MapQueue>(*this, slots, bytes);
}

absl::StatusOr<Pin> MapRuntime::Acquire(TensorId tensor, Access access, Time) {
  if (closed_) return Closed();
  if (!Knows(tensor)) return absl::InvalidArgumentError("no such tensor");
  return store_->Take(tensor,
                      tensors_[static_cast<size_t>(tensor.value)].size_bytes,
                      access, nullptr);
}

Stats MapRuntime::GetStats() const {
  Stats stats;
  stats.engine = "map";
  stats.host.budget_bytes = behaviour_.budget_bytes;
  stats.window_bytes = window_bytes_;
  return stats;
}

absl::Status MapRuntime::Close(Time) {
  closed_ = true;
  if (pins() > 0 || window_bytes_ > 0) {
    return absl::FailedPreconditionError("pins or queues are held");
  }
  return absl::OkStatus();
}

absl::Status MapRuntime::Closed() {
  return absl::CancelledError("the runtime is closed");
}

absl::Status MapRuntime::Enter(CallKind kind, TensorId tensor) {
  const Call call{calls_++, kind, tensor};
  return fault_ ? fault_(call) : absl::OkStatus();
}

}  // namespace terrace
