#include "runtime/torch/hook/operation_net.h"

#include <ATen/record_function.h>
#include <c10/util/SmallVector.h>
#include <pthread.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/bytes.h"
#include "runtime/torch/hook/collectives.h"
#include "runtime/torch/hook/managed_storage.h"
#include "runtime/torch/hook/window/byte_window.h"
#include "runtime/torch/operation/argument_storages.h"
#include "runtime/torch/operation/effects.h"
#include "terrace/machine.h"

namespace terrace {
namespace {

std::atomic<bool> is_forked_child = false;

using Storages = c10::SmallVector<ManagedStorage*, 6>;

void Unpin(ManagedStorage& storage) { storage.window().EndUse(storage); }

// The managed storages that an operation in flight takes.
struct PinnedStorages final : at::ObserverContext {
  ~PinnedStorages() override {
    for (ManagedStorage* const storage : storages) Unpin(*storage);
    // What is beyond the window goes back where the others have made room.
    for (ManagedStorage* const storage : beyond) Unpin(*storage);
  }

  ManagedStorage& front() const {
    return *(storages.empty() ? beyond : storages).front();
  }

  Storages storages;
  Storages beyond;   // others
  Storages written;  // of these
};

// Of one thread: how many operations it is in, one inside another, and what is
// kept until their ends, the innermost's last.
struct InFlight {
  struct Kept {
    int depth;
    ManagedStorage* storage;
  };
  int depth = 0;
  c10::SmallVector<Kept, 6> kept;
};

thread_local InFlight in_flight;
int64_t FootprintOf(const ManagedStorage& storage) {
  return ResidentBytes(storage.size_bytes());
}

// Each once; without those whose bytes are not looked at.
Storages Distinct(const Storages& storages) {
  Storages distinct;
  absl::flat_hash_set<const ManagedStorage*> seen;
  for (ManagedStorage* const storage : storages) {
    if (storage->is_barred()) continue;
    if (seen.insert(storage).second) distinct.push_back(storage);
  }
  return distinct;
}

int64_t BytesOf(const Storages& distinct) {
  int64_t bytes = 0;
  for (const ManagedStorage* const each : distinct) bytes += FootprintOf(*each);
  return bytes;
}

template <typename Visit>
void ForEachManaged(const c10::IValue& argument, const Visit& visit) {
  ForEachStorage(argument, [&](const c10::StorageImpl* storage) {
    if (ManagedStorage* const found = OperationNet::Get().Find(storage)) {
      visit(*found);
    }
  });
}

// An operation inside another may take what failed there: it is not tried
// again. Its message is what ends the operation. So is that of what is barred:
// it is not fetched, as one that failed now would do so for ever.
void Bring(const Storages& storages) {
  for (ManagedStorage* const storage : storages) {
    if (storage->word().state() != Residency::kResident &&
        !storage->is_barred()) {
      storage->window().Fetch(*storage).IgnoreError();
    }
  }
}

// Another thread may have held any lock as the process was forked.
void RefuseInChild(const at::RecordFunction& function) {
  for (const c10::IValue& input : function.inputs()) {
    ForEachManaged(input,
                   [](ManagedStorage& storage) { storage.RefuseInChild(); });
  }
}

// More than fits the Runtime at a time, with some room for what is on its way.
bool IsLarge(const WindowRoom& room, int64_t bytes) {
  return bytes >
         room.window_bytes() + (room.most_bytes() - room.window_bytes()) / 2;
}

// Of an operation that takes too much for the Runtime: one after the other is
// brought and goes beyond the window, until no more than `stays` bytes are in
// it.
void BringBeyond(PinnedStorages& pinned, const Storages& distinct,
                 int64_t stays, const char* operation) {
  const WindowRoom& room = distinct.front()->window().room();
  int64_t bytes = BytesOf(distinct);
  const int64_t available =
      std::min(room.beyond_bytes(), AvailableMemoryBytes());
  if (bytes - stays > available) {
    const absl::Status why = absl::ResourceExhaustedError(absl::StrCat(
        operation, " takes ", FormatBytes(bytes), " at a time, the budget is ",
        FormatBytes(room.most_bytes()), ", and of memory beside it ",
        FormatBytes(available), " are available"));
    for (ManagedStorage* const each : distinct) {
      each->window().RefuseFetch(*each, why);
    }
    return;
  }
  // What it has pinned makes room for what it needs first. Its arguments keep
  // their storages alive.
  for (ManagedStorage* const each : pinned.storages) each->word().Unpin();
  pinned.storages.clear();
  for (ManagedStorage* const each : distinct) {
    const bool goes_beyond = bytes > stays;
    (goes_beyond ? pinned.beyond : pinned.storages).push_back(each);
    const bool is_here = each->word().Pin() == Residency::kResident;
    if (goes_beyond) {
      each->window().FetchBeyond(*each, operation).IgnoreError();
      // What another has pinned too stays where it is.
      if (each->is_spilled()) bytes -= FootprintOf(*each);
    } else if (!is_here) {
      each->window().Fetch(*each).IgnoreError();
    }
  }
}

// Those that the Works of collectives keep have half of the budget at most, so
// that the largest operation has room beside them; what they take more goes
// beyond it, unless others of them end soon. False: it is as any operation.
bool BringForWork(PinnedStorages& pinned, const char* operation) {
  const Storages distinct = Distinct(pinned.storages);
  if (distinct.empty()) return true;
  ByteWindow& window = distinct.front()->window();
  const int64_t most = window.room().most_bytes() / 2;
  const int64_t bytes = BytesOf(distinct);
  const int64_t held = Collectives::Get().AwaitRoom(window, most - bytes);
  if (held == 0 || held + bytes <= most) return false;
  BringBeyond(pinned, distinct, most - held, operation);
  return true;
}

void BringAll(PinnedStorages& pinned, const at::RecordFunction& function) {
  Collectives::Get().EndDone();  // what they had pinned is room
  if (pinned.storages.size() > 1) {
    const Storages distinct = Distinct(pinned.storages);
    const int64_t bytes = BytesOf(distinct);
    if (!distinct.empty() &&
        IsLarge(distinct.front()->window().room(), bytes)) {
      const int64_t stays =
          distinct.front()->window().room().window_bytes() / 2;
      return BringBeyond(pinned, distinct, stays, function.name());
    }
  }
  Bring(pinned.storages);
}

std::unique_ptr<at::ObserverContext> Start(const at::RecordFunction& function) {
  if (is_forked_child.load(std::memory_order_relaxed)) {
    RefuseInChild(function);
    return nullptr;
  }
  std::unique_ptr<PinnedStorages> pinned;
  Effects effects;
  bool is_away = false;
  const c10::ArrayRef<const c10::IValue> inputs = function.inputs();
  for (size_t i = 0; i < inputs.size(); ++i) {
    ForEachManaged(inputs[i], [&](ManagedStorage& storage) {
      if (pinned == nullptr) {
        effects = EffectsOf(function);
        if (!effects.IsArgument(i)) return;
        pinned = std::make_unique<PinnedStorages>();
      }
      pinned->storages.push_back(&storage);
      if (storage.word().Pin() != Residency::kResident) is_away = true;
      storage.window().order().Note(storage);
      if (effects.Writes(i)) pinned->written.push_back(&storage);
    });
  }
  if (pinned == nullptr) return nullptr;
  if (effects.goes_on() && BringForWork(*pinned, function.name())) {
    is_away = false;
  }
  if (is_away && effects.needs_bytes()) BringAll(*pinned, function);
  // Not before: an eviction that goes on as it is pinned would take the mark.
  for (ManagedStorage* const each : pinned->written) each->MarkWritten();
  // While this one computes.
  pinned->front().window().FetchUpcoming();
  return pinned;
}

std::unique_ptr<at::ObserverContext> OnStart(
    const at::RecordFunction& function) {
  ++in_flight.depth;
  try {
    if (OperationGate* const gate = OperationNet::Get().gate()) {
      gate->AwaitOperands(function);
    }
    return Start(function);
  } catch (const std::exception&) {
    OperationNet::Get().CountFailure();
    return nullptr;
  }
}

// LibTorch calls it for each start and no other. What the operation takes is
// unpinned with its context, after it.
void OnEnd(const at::RecordFunction& /*function*/,
           at::ObserverContext* /*context*/) {
  InFlight& mine = in_flight;
  while (!mine.kept.empty() && mine.kept.back().depth >= mine.depth) {
    ManagedStorage* const storage = mine.kept.pop_back_val().storage;
    Unpin(*storage);
  }
  --mine.depth;
}

}  // namespace

OperationNet& OperationNet::Get() {
  // Storages may end after everything static has.
  static OperationNet& net = *new OperationNet();
  return net;
}

void OperationNet::Insert(const void* key, ManagedStorage* storage) {
  MutexLock lock(mutex_);
  registry_.Insert(key, storage);
  Listen();
}

void OperationNet::Erase(const void* key) {
  MutexLock lock(mutex_);
  registry_.Erase(key);
  StopIfIdle();
}

void OperationNet::BeginListening() {
  MutexLock lock(mutex_);
  ++listeners_;
  Listen();
}

void OperationNet::EndListening() {
  MutexLock lock(mutex_);
  --listeners_;
  StopIfIdle();
}

void OperationNet::Listen() {
  if (handle_.has_value()) return;
  ListenToRegistrations();
  static const int at_fork =
      pthread_atfork([] { Get().BeforeFork(); }, [] { Get().AfterFork(); },
                     [] {
                       is_forked_child.store(true, std::memory_order_relaxed);
                       Get().AfterFork();
                     });
  static_cast<void>(at_fork);
  handle_ = at::addGlobalCallback(
      at::RecordFunctionCallback(&OnStart, &OnEnd)
          .needsInputs(true)
          // Others may end on another thread than they began on.
          .scopes(
              {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

// A child may listen too.
void OperationNet::BeforeFork() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  mutex_.Lock();
}

void OperationNet::AfterFork() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  mutex_.Unlock();
}

void OperationNet::StopIfIdle() {
  if (registry_.size() > 0 || listeners_ > 0 || !handle_.has_value()) return;
  at::removeCallback(*std::exchange(handle_, std::nullopt));
}

void OperationNet::KeepUntilEnd(ManagedStorage& storage) {
  InFlight& mine = in_flight;
  if (mine.depth == 0) {
    Unpin(storage);
    return;
  }
  mine.kept.push_back({mine.depth, &storage});
}

bool OperationNet::IsSeen() { return at::isRecordFunctionEnabled(); }

}  // namespace terrace
