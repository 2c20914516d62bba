#include "runtime/torch/hook/operation_net.h"

#include <ATen/core/ivalue.h>
#include <ATen/record_function.h>
#include <c10/core/TensorImpl.h>
#include <c10/util/SmallVector.h>
#include <pthread.h>

#include <exception>
#include <memory>
#include <utility>

#include "runtime/torch/hook/byte_window.h"
#include "runtime/torch/hook/managed_storage.h"
#include "runtime/torch/hook/write_marks.h"

namespace terrace {
namespace {

std::atomic<bool> is_forked_child = false;

void Unpin(ManagedStorage& storage) {
  // It may go as soon as it is not pinned, its window may not.
  ByteWindow& window = storage.window();
  storage.word().Unpin();
  if (window.over()) window.Trim();
}

// The managed storages that an operation in flight takes.
struct PinnedStorages final : at::ObserverContext {
  ~PinnedStorages() override {
    for (ManagedStorage* const storage : storages) Unpin(*storage);
  }

  c10::SmallVector<ManagedStorage*, 6> storages;
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

ManagedStorage* FindManaged(const c10::IValue& tensor) {
  const c10::TensorImpl* const impl = tensor.unsafeToTensorImpl();
  if (!impl->has_storage()) return nullptr;
  return OperationNet::Get().Find(
      impl->unsafe_storage().unsafeGetStorageImpl());
}

// Of an argument: a tensor, a list of them with or without gaps, or the storage
// that a tensor is set to, whose address LibTorch 2.15 asks for.
template <typename Visit>
void ForEachManaged(const c10::IValue& argument, const Visit& visit) {
  if (argument.isTensor()) {
    if (ManagedStorage* const found = FindManaged(argument)) visit(*found);
  } else if (argument.isList()) {
    for (const c10::IValue& element : argument.toListRef()) {
      if (element.isNone()) continue;
      if (!element.isTensor()) break;
      if (ManagedStorage* const found = FindManaged(element)) visit(*found);
    }
  } else if (argument.isStorage()) {
    const c10::Storage storage = argument.toStorage();
    ManagedStorage* const found =
        OperationNet::Get().Find(storage.unsafeGetStorageImpl());
    if (found != nullptr) visit(*found);
  }
}

// An operation inside another may take what failed there: it is not tried
// again. Its message is what ends the operation.
void Bring(const PinnedStorages& pinned) {
  for (ManagedStorage* const storage : pinned.storages) {
    if (is_forked_child.load(std::memory_order_relaxed)) {
      storage->RefuseInChild();
    } else if (storage->word().state() != Residency::kResident) {
      storage->window().Fetch(*storage).IgnoreError();
    }
  }
}

std::unique_ptr<at::ObserverContext> Start(const at::RecordFunction& function) {
  std::unique_ptr<PinnedStorages> pinned;
  WrittenArguments written(0);
  bool is_away = is_forked_child.load(std::memory_order_relaxed);
  const c10::ArrayRef<const c10::IValue> inputs = function.inputs();
  for (size_t i = 0; i < inputs.size(); ++i) {
    ForEachManaged(inputs[i], [&](ManagedStorage& storage) {
      if (pinned == nullptr) {
        pinned = std::make_unique<PinnedStorages>();
        written = WrittenArgumentsOf(function);
      }
      pinned->storages.push_back(&storage);
      if (storage.word().Pin() != Residency::kResident) is_away = true;
      storage.window().NoteUse(storage);
      if (written.Has(i)) storage.MarkWritten();
    });
  }
  if (pinned == nullptr) return nullptr;
  if (is_away && !NeedsNoBytes(function)) Bring(*pinned);
  // While this one computes.
  pinned->storages.front()->window().FetchUpcoming();
  return pinned;
}

std::unique_ptr<at::ObserverContext> OnStart(
    const at::RecordFunction& function) {
  ++in_flight.depth;
  try {
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
  static const int at_fork = pthread_atfork(nullptr, nullptr, [] {
    is_forked_child.store(true, std::memory_order_relaxed);
  });
  static_cast<void>(at_fork);
  handle_ = at::addGlobalCallback(
      at::RecordFunctionCallback(&OnStart, &OnEnd)
          .needsInputs(true)
          // Others may end on another thread than they began on.
          .scopes(
              {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
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
