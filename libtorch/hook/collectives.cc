#include "libtorch/hook/collectives.h"

#include <c10/util/Exception.h>
#include <pthread.h>

#include <exception>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "libtorch/hook/life/operation_pins.h"
#include "libtorch/hook/managed_storage.h"
#include "libtorch/hook/window/byte_window.h"
#include "terrace/runtime.h"

namespace terrace {
namespace {

// AwaitRoom waits this long for Works to end. Peers that wait for another Work
// of ours, which has not begun, are not waited for any longer.
constexpr absl::Duration kLongestWaitForRoom = absl::Seconds(1);

}  // namespace

struct CollectiveUse::SilentWork {
  c10::weak_intrusive_ptr<c10d::Work> work;
};

CollectiveUse::CollectiveUse(std::string operation)
    : operation_(std::move(operation)) {}

CollectiveUse::~CollectiveUse() { End(); }

void CollectiveUse::Add(c10::StorageImpl& storage, ManagedStorage* managed) {
  storages_.push_back(&storage);
  if (managed == nullptr) return;
  // Operations do not wait for peers.
  managed->window().BeginWaiting(*managed);
  pinned_.push_back(managed);
  bytes_in_[&managed->window()] += ResidentBytes(managed->size_bytes());
}

void CollectiveUse::CheckBytes() const {
  for (const ManagedStorage* const each : pinned_) {
    static_cast<void>(each->key()->data());
    TORCH_CHECK(each->word().state() == Residency::kResident,
                each->Told("its bytes are not in memory"));
  }
}

void CollectiveUse::End() {
  if (!process_.IsCurrent()) return;  // the pins are the parent's
  for (ManagedStorage* const each : pinned_) {
    each->window().EndWaiting(*each);
    OperationPins::Unpin(*each);
  }
  pinned_.clear();
  Collectives::Get().Erase(*this);
}

bool CollectiveUse::Has(const c10::StorageImpl& storage) const {
  return absl::c_linear_search(storages_, &storage);
}

int64_t CollectiveUse::BytesIn(const ByteWindow& window) const {
  const auto found = bytes_in_.find(&window);
  return found == bytes_in_.end() ? 0 : found->second;
}

bool CollectiveUse::HasOf(const ByteWindow& window) const {
  return bytes_in_.contains(&window);
}

bool CollectiveUse::IsSilentDone() const {
  const c10::intrusive_ptr<c10d::Work> work = silent_work_->work.lock();
  return !work.defined() || work->isCompleted();
}

Collectives::Collectives() {
  pthread_atfork([] { Get().BeforeFork(); }, [] { Get().AfterFork(); },
                 [] { Get().AfterForkInChild(); });
}

Collectives& Collectives::Get() {
  // Works may end after everything static has ended.
  static Collectives& collectives = *new Collectives();
  return collectives;
}

void Collectives::Insert(const std::shared_ptr<CollectiveUse>& use,
                         const c10::intrusive_ptr<c10d::Work>& work) {
  EndDone();
  c10::intrusive_ptr<c10::ivalue::Future> future;
  try {
    future = work->getFuture();
  } catch (const std::exception&) {
    // This Work has no future.
  }
  if (!future.defined()) {
    use->silent_work_ = std::make_unique<CollectiveUse::SilentWork>(
        CollectiveUse::SilentWork{c10::weak_intrusive_ptr<c10d::Work>(work)});
  }
  {
    MutexLock lock(mutex_);
    uses_.push_back(use.get());
    if (use->is_silent()) silent_.push_back(use);
    silent_count_ = silent_.size();
  }
  if (!future.defined()) return;
  future->addCallback([use](c10::ivalue::Future&) { use->End(); },
                      /*uses_future=*/false);
}

absl::Status Collectives::CheckUnused(absl::string_view name,
                                      const c10::StorageImpl& storage) {
  EndDone();
  MutexLock lock(mutex_);
  for (const CollectiveUse* const use : uses_) {
    if (!use->Has(storage)) continue;
    return absl::FailedPreconditionError(
        absl::StrCat("tensor '", name, "' is in use by ", use->operation(),
                     ", which goes on; wait() for its Work first"));
  }
  return absl::OkStatus();
}

void Collectives::EndDone() {
  if (silent_count_.load(std::memory_order_relaxed) == 0) return;
  std::vector<std::shared_ptr<CollectiveUse>> done;  // end without the lock
  {
    MutexLock lock(mutex_);
    done = silent_;
  }
  std::erase_if(done, [](const auto& each) { return !each->IsSilentDone(); });
  MutexLock lock(mutex_);
  std::erase_if(silent_, [&](const auto& each) {
    return absl::c_linear_search(done, each);
  });
  silent_count_ = silent_.size();
}

int64_t Collectives::BytesIn(const ByteWindow& window, bool are_silent) const {
  int64_t bytes = 0;
  for (const CollectiveUse* const use : uses_) {
    if (use->is_silent() == are_silent) bytes += use->BytesIn(window);
  }
  return bytes;
}

void Collectives::AwaitRoom(const ByteWindow& window, int64_t most_bytes) {
  EndDone();
  const absl::Time deadline = absl::Now() + kLongestWaitForRoom;
  MutexLock lock(mutex_);
  while (true) {
    const int64_t silent = BytesIn(window, /*are_silent=*/true);
    const int64_t others = BytesIn(window, /*are_silent=*/false);
    const absl::Duration left = deadline - absl::Now();
    if (silent + others <= most_bytes || others == 0 ||
        left <= absl::ZeroDuration()) {
      return;
    }
    changed_.WaitFor(mutex_, left);
  }
}

void Collectives::AwaitEnd(const ByteWindow& window, absl::Time deadline) {
  EndDone();
  MutexLock lock(mutex_);
  while (true) {
    const bool is_used = absl::c_any_of(uses_, [&](const CollectiveUse* use) {
      return !use->is_silent() && use->HasOf(window);
    });
    const absl::Duration left = deadline - absl::Now();
    if (!is_used || left <= absl::ZeroDuration()) return;
    changed_.WaitFor(mutex_, left);
  }
}

void Collectives::Erase(CollectiveUse& use) {
  MutexLock lock(mutex_);
  if (std::erase(uses_, &use) > 0) changed_.SignalAll();
}

void Collectives::BeforeFork() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex_.Lock(); }

void Collectives::AfterFork() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  mutex_.Unlock();
}

// The uses are the parent's, and none of them may end here.
void Collectives::AfterForkInChild() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  uses_.clear();
  static_cast<void>(new auto(std::exchange(silent_, {})));
  silent_count_ = 0;
  mutex_.Unlock();
}

}  // namespace terrace
