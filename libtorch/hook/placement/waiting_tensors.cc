#include "libtorch/hook/placement/waiting_tensors.h"

#include <utility>

namespace terrace {
namespace {

constexpr size_t kLeastSwept = 64;

}  // namespace

WaitingTensors& WaitingTensors::Get() {
  static WaitingTensors& waiting = *new WaitingTensors();
  return waiting;
}

void WaitingTensors::Add(const c10::StorageImpl* storage, Weak weak,
                         const Births* maker) {
  if (!process_.IsCurrent()) return;
  MutexLock lock(mutex_);
  if (waiting_.size() >= most_) Sweep();
  waiting_.insert_or_assign(storage, Waiting{std::move(weak), maker});
  count_.store(waiting_.size(), std::memory_order_relaxed);
}

bool WaitingTensors::Has(const c10::StorageImpl* storage,
                         const Births* maker) const {
  if (IsEmpty() || !process_.IsCurrent()) return false;
  MutexLock lock(mutex_);
  const auto found = waiting_.find(storage);
  return found != waiting_.end() && found->second.maker == maker;
}

bool WaitingTensors::Take(const c10::StorageImpl* storage,
                          const Births* maker) {
  if (IsEmpty() || !process_.IsCurrent()) return false;
  MutexLock lock(mutex_);
  const auto found = waiting_.find(storage);
  if (found == waiting_.end() || found->second.maker != maker) return false;
  waiting_.erase(found);
  count_.store(waiting_.size(), std::memory_order_relaxed);
  return true;
}

void WaitingTensors::Forget(const c10::StorageImpl* storage) {
  if (IsEmpty() || !process_.IsCurrent()) return;
  MutexLock lock(mutex_);
  waiting_.erase(storage);
  count_.store(waiting_.size(), std::memory_order_relaxed);
}

void WaitingTensors::ForgetAllOf(const Births* maker) {
  if (IsEmpty() || !process_.IsCurrent()) return;
  MutexLock lock(mutex_);
  absl::erase_if(waiting_,
                 [&](const auto& each) { return each.second.maker == maker; });
  count_.store(waiting_.size(), std::memory_order_relaxed);
}

void WaitingTensors::Sweep() {
  absl::erase_if(
      waiting_, [](const auto& each) { return each.second.storage.expired(); });
  most_ = 2 * waiting_.size() + kLeastSwept;
}

}  // namespace terrace
