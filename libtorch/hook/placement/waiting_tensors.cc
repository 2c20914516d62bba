#include "libtorch/hook/placement/waiting_tensors.h"

#include <utility>

#include "libtorch/hook/life/operation_pins.h"
#include "libtorch/hook/life/without_python.h"
#include "libtorch/hook/placement/newborn_memory.h"

namespace terrace {
namespace {

constexpr size_t kLeastSwept = 64;

// No other thread that runs has the same.
const void* ThisThread() {
  constinit thread_local char here = 0;
  return &here;
}

// A forked child leaves its parent's object alone, as any lock of it may be
// held for ever there.
std::atomic<WaitingTensors*> current = nullptr;

// Erases those whose storages have died once there are `most` of them.
template <typename Map, typename HasDied>
void Sweep(Map& map, size_t& most, const HasDied& has_died) {
  if (map.size() < most) return;
  absl::erase_if(map, [&](const auto& each) { return has_died(each.second); });
  most = 2 * map.size() + kLeastSwept;
}

}  // namespace

WaitingTensors& WaitingTensors::Get() {
  WaitingTensors* present = current.load(std::memory_order_acquire);
  while (present == nullptr || !present->process_.IsCurrent()) {
    auto* const made = new WaitingTensors();
    if (current.compare_exchange_strong(present, made)) return *made;
    delete made;
  }
  return *present;
}

void WaitingTensors::SetCount() {
  count_.store(waiting_.size(), std::memory_order_relaxed);
}

void WaitingTensors::Erase(const c10::StorageImpl* storage) {
  waiting_.erase(storage);
  SetCount();
}

void WaitingTensors::Add(const c10::Storage& storage,
                         const std::shared_ptr<NewbornOwner>& owner) {
  MutexLock lock(mutex_);
  Sweep(waiting_, most_waiting_,
        [](const Waiting& each) { return each.storage.expired(); });
  waiting_.insert_or_assign(
      storage.unsafeGetStorageImpl(),
      Waiting{storage.getWeakStorageImpl(), ThisThread(), owner});
  SetCount();
}

bool WaitingTensors::Has(const c10::StorageImpl* storage) const {
  if (!MayHave()) return false;
  MutexLock lock(mutex_);
  const auto found = waiting_.find(storage);
  return found != waiting_.end() && found->second.maker == ThisThread();
}

void WaitingTensors::Adopt(const at::Tensor& tensor) {
  const c10::StorageImpl* const storage =
      tensor.storage().unsafeGetStorageImpl();
  std::shared_ptr<NewbornOwner> owner;
  {
    MutexLock lock(mutex_);
    const auto found = waiting_.find(storage);
    if (found == waiting_.end() || found->second.maker != ThisThread()) return;
    owner = found->second.owner.lock();
    if (owner == nullptr) return Erase(storage);
    found->second.is_adopted = true;
  }
  owner->Adopt(tensor);
  MutexLock lock(mutex_);
  Erase(storage);
  adopted_.SignalAll();
}

bool WaitingTensors::IsAdopted(const c10::StorageImpl* storage) const {
  const auto found = waiting_.find(storage);
  return found != waiting_.end() && found->second.is_adopted;
}

void WaitingTensors::AwaitAdoption(const c10::StorageImpl* storage) {
  {
    MutexLock lock(mutex_);
    if (!IsAdopted(storage)) return;
  }
  // Whoever adopts it may need room, or Python's lock.
  const WithoutPython without;
  const OperationPins::Waiting waits;
  MutexLock lock(mutex_);
  while (IsAdopted(storage)) adopted_.Wait(mutex_);
}

void WaitingTensors::NoteUse(const c10::StorageImpl* storage) {
  {
    MutexLock lock(mutex_);
    const auto found = waiting_.find(storage);
    if (found == waiting_.end() || found->second.maker == ThisThread()) return;
    if (!found->second.is_adopted) return Erase(storage);
  }
  AwaitAdoption(storage);
}

void WaitingTensors::Forget(const c10::StorageImpl* storage) {
  MutexLock lock(mutex_);
  if (!IsAdopted(storage)) Erase(storage);
}

void WaitingTensors::ForgetAllOfThisThread() {
  if (!MayHave()) return;
  MutexLock lock(mutex_);
  absl::erase_if(waiting_, [&](const auto& each) {
    return each.second.maker == ThisThread();
  });
  SetCount();
}

void WaitingTensors::NoteAddress(const c10::Storage& storage) {
  c10::StorageImpl* const impl = storage.unsafeGetStorageImpl();
  AwaitAdoption(impl);
  MutexLock lock(mutex_);
  Erase(impl);
  // What is managed is not there.
  if (!IsNewborn(impl->_mutable_data_ptr_no_checks().get())) return;
  Sweep(given_, most_given_, [](const Weak& each) { return each.expired(); });
  given_.insert_or_assign(impl, storage.getWeakStorageImpl());
}

bool WaitingTensors::HasGivenAddress(const c10::StorageImpl* storage) const {
  MutexLock lock(mutex_);
  return given_.contains(storage);
}

}  // namespace terrace
