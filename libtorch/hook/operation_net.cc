#include "libtorch/hook/operation_net.h"

#include <ATen/record_function.h>
#include <c10/util/SmallVector.h>
#include <pthread.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <utility>

#include "libtorch/hook/collectives.h"
#include "libtorch/hook/life/operation_pins.h"
#include "libtorch/hook/life/without_python.h"
#include "libtorch/hook/managed_storage.h"
#include "libtorch/hook/operation/argument_storages.h"
#include "libtorch/hook/operation/effects.h"
#include "libtorch/hook/operation/list_operators.h"
#include "libtorch/hook/placement/waiting_tensors.h"
#include "libtorch/hook/storage_check.h"
#include "libtorch/hook/window/byte_window.h"

namespace terrace {
namespace {

// The memory of the thread's last PinnedStorages, for its next.
constinit thread_local void* spare_memory = nullptr;

// The storages that an operation in flight takes, and those that it writes to.
struct PinnedStorages final : at::ObserverContext {
  PinnedStorages() {}  // so that its room is not cleared first
  static void* operator new(size_t size) {
    void* const spare = std::exchange(spare_memory, nullptr);
    return spare != nullptr ? spare : ::operator new(size);
  }
  static void operator delete(void* memory) {
    ::operator delete(std::exchange(spare_memory, memory));
  }

  // The device begins the operation after it has ended here. Streams that an
  // argument names use the storages too.
  void NoteStreams(const at::RecordFunction& function) const {
    for (ManagedStorage* const each : on_device) each->NoteStream();
    for (const c10::IValue& input : function.inputs()) {
      if (on_device.empty() || !input.isStream()) continue;
      const c10::Stream named = input.toStream();
      for (ManagedStorage* const each : on_device) each->NoteStream(named);
    }
  }

  OperationPins pins;
  c10::SmallVector<ManagedStorage*, 6> written;
  c10::SmallVector<ManagedStorage*, 6> on_device;
};

// InFlight says how many operations a thread is in, one inside another, and
// which storages are kept until their ends; the innermost operation's are last.
struct InFlight {
  struct Kept {
    int depth;
    ManagedStorage* storage;
  };
  ~InFlight() { ::operator delete(std::exchange(spare_memory, nullptr)); }

  int depth = 0;
  int in_parts = 0;  // the depth of an operation that is called in parts
  c10::SmallVector<Kept, 6> kept;
};

thread_local InFlight in_flight;

template <typename Visit>
void ForEachManaged(const c10::IValue& argument, const Visit& visit) {
  const OperationNet& net = OperationNet::Get();
  ForEachStorage(argument, [&](const c10::StorageImpl* storage) {
    if (StorageLife* const found = net.FindLife(storage)) {
      visit(static_cast<ManagedStorage&>(*found));
    }
  });
}

// Tensors that Works of collectives keep have half of the budget at most, as
// far as other Works end soon, so that the largest operation has room beside
// them.
void AwaitRoomForWork(const OperationPins& pins) {
  const WithoutPython without;
  for (const auto& [window, bytes] : pins.shares()) {
    Collectives::Get().AwaitRoom(*window,
                                 window->room().most_bytes() / 2 - bytes);
  }
}

// Pins all managed storages of the operation and returns null. When a storage
// cannot be pinned now, PinAll returns that storage and leaves nothing pinned;
// the operation waits for the storage's life and looks again.
ManagedStorage* PinAll(const at::RecordFunction& function, Effects& effects,
                       std::unique_ptr<PinnedStorages>& pinned) {
  ManagedStorage* unsettled = nullptr;
  const c10::ArrayRef<const c10::IValue> inputs = function.inputs();
  for (size_t i = 0; i < inputs.size() && unsettled == nullptr; ++i) {
    ForEachManaged(inputs[i], [&](ManagedStorage& storage) {
      if (unsettled != nullptr) return;
      if (storage.is_parents()) return storage.RefuseInChild();
      if (pinned == nullptr) {
        effects = EffectsOf(function);
        if (!effects.IsArgument(i)) return;
        pinned = std::make_unique<PinnedStorages>();
      }
      if (!pinned->pins.Pin(storage)) {
        unsettled = &storage;  // lives on: the operation has its storage
        return;
      }
      if (effects.Writes(i)) pinned->written.push_back(&storage);
      if (storage.is_on_device()) pinned->on_device.push_back(&storage);
    });
  }
  if (unsettled != nullptr) pinned.reset();
  return unsettled;
}

void BringAll(OperationPins& pins, const at::RecordFunction& function,
              const Effects& effects) {
  if (effects.goes_on()) {
    AwaitRoomForWork(pins);
  } else if (!pins.is_away() || !effects.needs_bytes()) {
    return;
  }
  Collectives::Get().EndDone();  // Works that are done make room
  pins.Bring(function.name());
}

std::unique_ptr<at::ObserverContext> Start(const at::RecordFunction& function) {
  std::unique_ptr<PinnedStorages> pinned;
  Effects effects;
  while (ManagedStorage* const unsettled = PinAll(function, effects, pinned)) {
    OperationPins::AwaitLife(*unsettled);
  }
  if (pinned == nullptr) return nullptr;
  if (!pinned->on_device.empty() && NeedsParts(function, pinned->pins)) {
    in_flight.in_parts = in_flight.depth;
    return nullptr;
  }
  BringAll(pinned->pins, function, effects);
  // The marks are set after the bytes are here: an eviction that goes on as a
  // storage is pinned would take an earlier mark. So it is with streams.
  for (ManagedStorage* const each : pinned->written) each->MarkWritten();
  if (!pinned->on_device.empty()) pinned->NoteStreams(function);
  return pinned;
}

// A tensor that waits for an operation of its maker's thread stays where it is
// once another thread's operation has it (waiting_tensors.h).
void NoteUses(const at::RecordFunction& function) {
  WaitingTensors& waiting = WaitingTensors::Get();
  if (!waiting.MayHave()) return;
  for (const c10::IValue& input : function.inputs()) {
    ForEachStorage(input, [&](const c10::StorageImpl* storage) {
      waiting.NoteUse(storage);
    });
  }
}

std::unique_ptr<at::ObserverContext> OnStart(
    const at::RecordFunction& function) {
  ++in_flight.depth;
  try {
    NoteUses(function);
    if (OperationGate* const gate = OperationNet::Get().gate()) {
      gate->AwaitOperands(function);
    }
    return Start(function);
  } catch (const std::exception&) {
    OperationNet::Get().CountFailure();
    return nullptr;
  }
}

// LibTorch calls this once for each OnStart. The operation's storages are
// unpinned with its context, after this call.
void OnEnd(const at::RecordFunction& /*function*/,
           at::ObserverContext* /*context*/) {
  InFlight& mine = in_flight;
  while (!mine.kept.empty() && mine.kept.back().depth >= mine.depth) {
    OperationPins::EndKeeping(*mine.kept.pop_back_val().storage);
  }
  if (mine.in_parts == mine.depth) mine.in_parts = 0;
  --mine.depth;
}

}  // namespace

OperationNet& OperationNet::Get() {
  // Storages may end after everything static has ended.
  static OperationNet& net = *new OperationNet();
  return net;
}

ManagedStorage* OperationNet::Find(const void* key) const {
  return static_cast<ManagedStorage*>(FindLife(key));
}

ManagedStorage* OperationNet::Find(const at::Tensor& tensor) const {
  if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->has_storage()) {
    return nullptr;
  }
  return Find(StorageOf(tensor));
}

ManagedStorage* OperationNet::Pin(const void* key) const {
  while (ManagedStorage* const found = Find(key)) {
    if (found->word().Pin(/*holds_pins=*/true).has_value()) return found;
    OperationPins::AwaitLife(*found, /*holds_pins=*/true);
  }
  return nullptr;
}

bool OperationNet::Insert(StorageLife& storage) {
  OrderedLock lock(mutex_);
  if (!registry_.Insert(storage.address(), &storage)) return false;
  Listen();
  return true;
}

StorageIndex::Ended OperationNet::Erase(std::shared_ptr<StorageLife> storage) {
  OrderedLock lock(mutex_);
  registry_.Erase(storage->address());
  StopIfIdle();
  return registry_.Keep(std::move(storage));
}

void OperationNet::ForEachInChild(
    absl::FunctionRef<void(ManagedStorage&)> visit) const {
  registry_.ForEachInChild([&](StorageLife& storage) {
    visit(static_cast<ManagedStorage&>(storage));
  });
}

void OperationNet::BeginListening() {
  OrderedLock lock(mutex_);
  ++listeners_;
  Listen();
}

void OperationNet::EndListening() {
  OrderedLock lock(mutex_);
  --listeners_;
  StopIfIdle();
}

void OperationNet::Listen() {
  if (handle_.has_value()) return;
  ListenToRegistrations();
  static const int at_fork =
      pthread_atfork([] { Get().BeforeFork(); }, [] { Get().AfterFork(); },
                     [] { Get().AfterFork(); });
  static_cast<void>(at_fork);
  handle_ = at::addGlobalCallback(
      at::RecordFunctionCallback(&OnStart, &OnEnd)
          .needsInputs(true)
          // Other scopes may end on another thread than they began on.
          .scopes(
              {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

// A forked child may listen too, so that it needs the lock free.
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
    OperationPins::Unpin(storage);
    return;
  }
  mine.kept.push_back({mine.depth, &storage});
  OperationPins::Keep(storage);
}

bool OperationNet::IsInParts() {
  return in_flight.in_parts > 0 && in_flight.in_parts == in_flight.depth;
}

bool OperationNet::IsSeen() { return at::isRecordFunctionEnabled(); }

}  // namespace terrace
