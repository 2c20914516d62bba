#include "libtorch/accelerator/device_net.h"

#include <ATen/record_function.h>
#include <c10/core/StorageImpl.h>
#include <c10/util/SmallVector.h>
#include <pthread.h>

#include <exception>
#include <utility>

#include "libtorch/hook/operation/argument_storages.h"
#include "libtorch/hook/operation/effects.h"

namespace terrace {
namespace {

struct PinnedTensors final : at::ObserverContext {
  struct Use {
    DeviceNet::Managed managed;
    bool is_written;
  };
  ~PinnedTensors() override {
    for (const Use& use : uses) use.managed.tensor->word().Unpin();
  }
  c10::SmallVector<Use, 4> uses;
};

std::unique_ptr<PinnedTensors> PinAll(const at::RecordFunction& function,
                                      Effects& effects) {
  std::unique_ptr<PinnedTensors> pinned;
  const c10::ArrayRef<const c10::IValue> inputs = function.inputs();
  for (size_t i = 0; i < inputs.size(); ++i) {
    ForEachStorage(inputs[i], [&](const c10::StorageImpl* storage) {
      std::optional<DeviceNet::Managed> found =
          DeviceNet::Get().Pin(storage, storage->device_type());
      if (!found.has_value()) return;
      if (pinned == nullptr) {
        pinned = std::make_unique<PinnedTensors>();
        effects = EffectsOf(function);
      }
      pinned->uses.push_back({*std::move(found), effects.Writes(i)});
    });
  }
  return pinned;
}

// What fails has a message on its storage, which ends the operation. A process
// group goes on on streams of its own; what this library sends has a pin of its
// own.
void BringAll(PinnedTensors& pinned, const Effects& effects) {
  for (const PinnedTensors::Use& use : pinned.uses) {
    use.managed.window->Fetch(*use.managed.tensor).IgnoreError();
  }
  for (const PinnedTensors::Use& use : pinned.uses) {
    DeviceTensor& tensor = *use.managed.tensor;
    DeviceWindow& window = *use.managed.window;
    if (tensor.word().state() != Residency::kResident) continue;
    window.Use(tensor, use.is_written, window.IsCapturing()).IgnoreError();
    if (effects.goes_on()) tensor.uses().NoteCollective();
  }
}

std::unique_ptr<at::ObserverContext> OnStart(
    const at::RecordFunction& function) {
  try {
    Effects effects;
    std::unique_ptr<PinnedTensors> pinned = PinAll(function, effects);
    if (pinned != nullptr && effects.needs_bytes()) BringAll(*pinned, effects);
    return pinned;
  } catch (const std::exception&) {
    return nullptr;  // no memory; what is away says so
  }
}

uint64_t BitOf(c10::DeviceType type) {
  return uint64_t{1} << static_cast<unsigned>(type);
}

}  // namespace

DeviceNet& DeviceNet::Get() {
  // Storages may end after everything static has.
  static DeviceNet& net = *new DeviceNet();
  return net;
}

void DeviceNet::Insert(const void* key, c10::DeviceType type, Managed managed) {
  types_.fetch_or(BitOf(type));
  MutexLock lock(mutex_);
  managed_.insert_or_assign(key, std::move(managed));
  Listen();
}

void DeviceNet::Erase(const void* key) {
  std::optional<Managed> last;  // ends without the lock
  MutexLock lock(mutex_);
  const auto found = managed_.find(key);
  if (found == managed_.end()) return;
  last = std::move(found->second);
  managed_.erase(found);
  StopIfIdle();
}

std::optional<DeviceNet::Managed> DeviceNet::Pin(const void* key,
                                                 c10::DeviceType type) {
  if ((types_.load(std::memory_order_relaxed) & BitOf(type)) == 0) {
    return std::nullopt;
  }
  MutexLock lock(mutex_);
  const auto found = managed_.find(key);
  if (found == managed_.end()) return std::nullopt;
  // With the lock: after the Erase of one that is not pinned nothing pins it.
  found->second.tensor->word().Pin();
  return found->second;
}

void DeviceNet::Listen() {
  if (handle_.has_value()) return;
  ListenToRegistrations();
  static const int at_fork =
      pthread_atfork([] { Get().BeforeFork(); }, [] { Get().AfterFork(); },
                     [] { Get().AfterForkInChild(); });
  static_cast<void>(at_fork);
  handle_ = at::addGlobalCallback(
      at::RecordFunctionCallback(&OnStart)
          .needsInputs(true)
          // Others may end on another thread than they began on.
          .scopes(
              {at::RecordScope::FUNCTION, at::RecordScope::BACKWARD_FUNCTION}));
}

void DeviceNet::BeforeFork() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex_.Lock(); }

void DeviceNet::AfterFork() ABSL_NO_THREAD_SAFETY_ANALYSIS { mutex_.Unlock(); }

// What is there is the parent's, whose device a child does not use.
void DeviceNet::AfterForkInChild() ABSL_NO_THREAD_SAFETY_ANALYSIS {
  static_cast<void>(new auto(std::exchange(managed_, {})));
  mutex_.Unlock();
}

void DeviceNet::StopIfIdle() {
  if (!managed_.empty() || !handle_.has_value()) return;
  at::removeCallback(*std::exchange(handle_, std::nullopt));
}

}  // namespace terrace
