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

// The managed storages that an operation in flight takes.
struct PinnedStorages final : at::ObserverContext {
  ~PinnedStorages() override {
    for (ManagedStorage* const storage : storages) {
      // It may go as soon as it is not pinned, its window may not.
      ByteWindow& window = storage->window();
      storage->word().Unpin();
      if (window.over()) window.Trim();
    }
  }

  c10::SmallVector<ManagedStorage*, 6> storages;
};

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
  try {
    return Start(function);
  } catch (const std::exception&) {
    OperationNet::Get().CountFailure();
    return nullptr;
  }
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
  if (handle_.has_value()) return;
  ListenToRegistrations();
  static const int at_fork = pthread_atfork(nullptr, nullptr, [] {
    is_forked_child.store(true, std::memory_order_relaxed);
  });
  static_cast<void>(at_fork);
  handle_ = at::addGlobalCallback(
      // Its end is that of what it answers.
      at::RecordFunctionCallback(&OnStart)
          .needsInputs(true)
          // Others may end on another thread than they began on.
          .scopes(
              {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

void OperationNet::Erase(const void* key) {
  MutexLock lock(mutex_);
  registry_.Erase(key);
  if (registry_.size() > 0 || !handle_.has_value()) return;
  at::removeCallback(*std::exchange(handle_, std::nullopt));
}

}  // namespace terrace
