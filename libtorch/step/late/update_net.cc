#include "libtorch/step/late/update_net.h"

#include <c10/util/SmallVector.h>
#include <pthread.h>

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "libtorch/hook/life/operation_pins.h"
#include "libtorch/hook/life/without_python.h"
#include "libtorch/hook/operation/argument_storages.h"
#include "libtorch/hook/operation/effects.h"
#include "libtorch/hook/operation_net.h"
#include "libtorch/step/late/refused_storage.h"

namespace terrace {
namespace {

struct Operands {
  c10::SmallVector<PendingStorages::Operand, 8> operands;
  c10::SmallVector<c10::StorageImpl*, 8> storages;

  void Add(c10::StorageImpl* storage, bool is_written) {
    operands.push_back({storage, is_written});
    storages.push_back(storage);
  }
};

// An update may need the room of what an operation around these has.
void AwaitAll(const UpdateNet::List& pending) {
  const OperationPins::Waiting waiting;
  for (const auto& each : pending) each->AwaitEnd();
}

void AwaitEach(const UpdateNet::List& pending, const Operands& operands) {
  const OperationPins::Waiting waiting;
  for (const auto& each : pending) {
    each->Await(operands.operands, [&](size_t operand,
                                       const absl::Status& why) {
      return std::make_shared<RefusedStorage>(*operands.storages[operand], why);
    });
  }
}

}  // namespace

// The updates may evict a storage whose last tensor ends meanwhile, and
// LibTorch ends a storage that Python has seen with Python's lock alone: so
// each thread that waits for updates here gives the lock up.
void UpdateNet::AwaitOperands(const at::RecordFunction& function) {
  const WithoutPython without;
  const List pending = this->pending();
  if (function.scope() == at::RecordScope::BACKWARD_FUNCTION) {
    AwaitAll(pending);
  } else {
    // An operation that needs no bytes waits too, since the bytes of a view
    // that it makes may later be read by address.
    const Effects effects = EffectsOf(function);
    const c10::ArrayRef<const c10::IValue> inputs = function.inputs();
    Operands operands;
    for (size_t i = 0; i < inputs.size(); ++i) {
      if (!effects.IsArgument(i)) continue;
      ForEachStorage(inputs[i], [&](c10::StorageImpl* storage) {
        operands.Add(storage, effects.Writes(i));
      });
    }
    AwaitEach(pending, operands);
  }
  for (const auto& each : pending) {
    if (!each->is_done()) continue;
    Erase(*each);
    static_cast<void>(each->TakeGarbage());  // no other call would take it
  }
}

UpdateNet& UpdateNet::Get() {
  // The net is never destroyed, since storages may end after all statics.
  static UpdateNet& net = *new UpdateNet();
  return net;
}

void UpdateNet::Insert(std::shared_ptr<PendingStorages> pending) {
  OrderedLock lock(mutex_);
  pending_.push_back(std::move(pending));
  Listen();
}

void UpdateNet::Erase(const PendingStorages& pending) {
  std::shared_ptr<PendingStorages> erased;  // ends after the lock
  OrderedLock lock(mutex_);
  const auto found =
      std::find_if(pending_.begin(), pending_.end(),
                   [&](const auto& each) { return each.get() == &pending; });
  if (found == pending_.end()) return;
  erased = std::move(*found);
  pending_.erase(found);
  if (!pending_.empty()) return;
  OperationNet::Get().SetGate(nullptr);
  OperationNet::Get().EndListening();
  is_listening_ = false;
}

UpdateNet::List UpdateNet::pending() const {
  OrderedLock lock(mutex_);
  return pending_;
}

absl::Status UpdateNet::Await(const c10::Storage& storage, bool is_written) {
  const PendingStorages::Operand operand = {storage.unsafeGetStorageImpl(),
                                            is_written};
  absl::Status status;
  const WithoutPython without;
  const OperationPins::Waiting waiting;
  for (const auto& each : pending()) {
    each->Await({&operand, 1}, [&](size_t, const absl::Status& why) {
      status.Update(absl::FailedPreconditionError(
          absl::StrCat("terrace: ", why.message())));
      return nullptr;
    });
  }
  return status;
}

bool UpdateNet::IsFree(const c10::Storage& storage, bool is_written) {
  const PendingStorages::Operand operand = {storage.unsafeGetStorageImpl(),
                                            is_written};
  const List pending = this->pending();
  return std::all_of(pending.begin(), pending.end(),
                     [&](const auto& each) { return each->IsFree(operand); });
}

void UpdateNet::BeginAgain(PendingStorages& pending) {
  OrderedLock lock(mutex_);
  pending.BeginAgain();
}

bool UpdateNet::IsAwaited() {
  const List pending = this->pending();
  return std::any_of(pending.begin(), pending.end(),
                     [](const auto& each) { return each->has_waiters(); });
}

void UpdateNet::AwaitEverything() {
  const WithoutPython without;
  AwaitAll(pending());
}

// Waits until no step goes on, and holds the mutex until after the fork. Python
// keeps its locks over a fork, and so does this thread: Python's package waits
// for the updates before (late_readers.py).
void UpdateNet::BeforeFork() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  while (true) {
    AwaitAll(pending());
    mutex_.Lock();
    if (std::all_of(pending_.begin(), pending_.end(),
                    [](const auto& each) { return each->has_ended(); })) {
      return;
    }
    mutex_.Unlock();
  }
}

void UpdateNet::AfterFork() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex_.Unlock(); }

// The steps are the parent's, and their locks may be held for ever, so that the
// child drops them without destroying them.
void UpdateNet::AfterForkInChild() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  static_cast<void>(new List(std::exchange(pending_, {})));
  mutex_.Unlock();
}

void UpdateNet::Listen() {
  if (std::exchange(is_listening_, true)) return;
  OperationNet::Get().SetGate(this);
  OperationNet::Get().BeginListening();
  static const int at_fork =
      pthread_atfork([] { Get().BeforeFork(); }, [] { Get().AfterFork(); },
                     [] { Get().AfterForkInChild(); });
  static_cast<void>(at_fork);
}

}  // namespace terrace
