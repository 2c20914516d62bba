// Tensors that were made without contents in a scope of placement, and that no
// operation of the thread which made them has written yet. Whoever takes the
// address of one, to fill or to read it by, has it forgotten, and it stays the
// ordinary tensor that it is.
//
// There is one for the process. It is thread-safe, but for a forked child,
// which has none.
#pragma once

#include <c10/core/StorageImpl.h>

#include <atomic>
#include <cstddef>

#include "absl/container/flat_hash_map.h"
#include "base/mutex.h"
#include "base/process.h"

namespace terrace {

class Births;

class WaitingTensors {
 public:
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;

  static WaitingTensors& Get();

  void Add(const c10::StorageImpl* storage, Weak weak, const Births* maker);
  // Whether the storage waits for an operation of this maker.
  bool Has(const c10::StorageImpl* storage, const Births* maker) const;
  // It waits no more; false: it did not.
  bool Take(const c10::StorageImpl* storage, const Births* maker);
  void Forget(const c10::StorageImpl* storage);
  void ForgetAllOf(const Births* maker);

 private:
  struct Waiting {
    Weak storage;  // no other has its address meanwhile
    const Births* maker;
  };

  WaitingTensors() = default;
  bool IsEmpty() const { return count_.load(std::memory_order_relaxed) == 0; }
  void Sweep() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Process process_;
  mutable Mutex mutex_;
  absl::flat_hash_map<const c10::StorageImpl*, Waiting> waiting_
      ABSL_GUARDED_BY(mutex_);
  // As many are kept before those that have died are looked for.
  size_t most_ ABSL_GUARDED_BY(mutex_) = 0;
  std::atomic<size_t> count_ = 0;
};

}  // namespace terrace
