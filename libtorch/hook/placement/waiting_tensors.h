// Tensors that were made without contents in a scope of placement, and that no
// operation of the thread which made them has written yet. Such a tensor is
// adopted, which gives it other memory, only where nobody can have its present
// memory: it stays the ordinary tensor that it is once an operation of another
// thread has taken it, or one of its own thread has read it, as it then was
// filled by its address, or once somebody has asked Python for the address.
// Operations of other threads that begin while it is adopted wait for that.
//
// The object also knows which tensors in newborn memory (placing.h) have given
// their address away, so that an operation which does so with its own result
// leaves it where it is.
//
// What is not known is an address that C++ has taken, and an operation that
// observers of LibTorch do not see. The class is thread-safe. Each process has
// one object; a forked child begins with an empty one.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>
#include <c10/core/StorageImpl.h>

#include <atomic>
#include <cstddef>
#include <memory>

#include "absl/container/flat_hash_map.h"
#include "base/mutex.h"
#include "base/process.h"
#include "libtorch/hook/placement/newborn_owner.h"

namespace terrace {

class WaitingTensors {
 public:
  static WaitingTensors& Get();

  // Those that wait: false as a rule, at the cost of a load.
  bool MayHave() const { return count_.load(std::memory_order_relaxed) > 0; }
  // The storage waits for an operation of the calling thread.
  void Add(const c10::Storage& storage,
           const std::shared_ptr<NewbornOwner>& owner);
  bool Has(const c10::StorageImpl* storage) const;
  // An operation has written the tensor and has ended: its owner adopts it if
  // it still waits for one of the calling thread.
  void Adopt(const at::Tensor& tensor);
  // An operation of the calling thread is about to take the storage.
  void NoteUse(const c10::StorageImpl* storage);
  // It waits no more.
  void Forget(const c10::StorageImpl* storage);
  void ForgetAllOfThisThread();

  // Somebody has the address of the storage's bytes.
  void NoteAddress(const c10::Storage& storage);
  bool HasGivenAddress(const c10::StorageImpl* storage) const;

 private:
  using Weak = c10::weak_intrusive_ptr<c10::StorageImpl>;
  struct Waiting {
    Weak storage;       // no other has its address meanwhile
    const void* maker;  // ThisThread() there
    std::weak_ptr<NewbornOwner> owner;
    bool is_adopted = false;  // just now, by its maker
  };

  WaitingTensors() = default;
  void SetCount() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Erase(const c10::StorageImpl* storage)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool IsAdopted(const c10::StorageImpl* storage) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns once nobody adopts the storage.
  void AwaitAdoption(const c10::StorageImpl* storage);

  const Process process_;
  mutable Mutex mutex_;
  CondVar adopted_;
  absl::flat_hash_map<const c10::StorageImpl*, Waiting> waiting_
      ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_map<const c10::StorageImpl*, Weak> given_
      ABSL_GUARDED_BY(mutex_);
  // As many are kept before those that have died are looked for.
  size_t most_waiting_ ABSL_GUARDED_BY(mutex_) = 0;
  size_t most_given_ ABSL_GUARDED_BY(mutex_) = 0;
  // A thread that has a tensor from its maker also sees that it waits.
  std::atomic<size_t> count_ = 0;  // of waiting_
};

}  // namespace terrace
