// The net sees every operation that LibTorch dispatches, forward and backward,
// before and after it runs: the managed storages that the operation reads are
// brought first, and stay until its end. The net is the one part of the hook
// that a process has once, as LibTorch's observers are the process's.
//
// A fetch that fails does not end the operation here, since LibTorch swallows
// what an observer throws: the storage's message ends it, when the operation
// looks at its bytes. In a forked child, which has none of its parent's bytes,
// each storage of the parent's that an operation takes is refused in that way;
// storages that the child manages are as any.
//
// While no storage is managed and nothing listens, operations are not seen and
// cost nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "base/threads/lock_order.h"
#include "libtorch/hook/life/storage_life.h"
#include "libtorch/hook/operation_gate.h"
#include "libtorch/hook/storage_registry.h"

namespace terrace {

class ManagedStorage;

// The net is thread-safe.
class OperationNet final : public StorageIndex {
 public:
  // Returns the one net of the process, which lives for ever.
  static OperationNet& Get();

  // Returns null when no hook manages the storage.
  ManagedStorage* Find(const void* key) const;
  // Finds the tensor's storage; a tensor without one gives null.
  ManagedStorage* Find(const at::Tensor& tensor) const;
  StorageLife* FindLife(const void* key) const { return registry_.Find(key); }
  // Finds the storage and pins it as a thread that has pins does. Waits while
  // the storage enters or leaves.
  ManagedStorage* Pin(const void* key) const;
  // Insert and Erase do what StorageIndex describes. Operations that begin
  // after the Insert of the first storage are seen, and none that begin after
  // the Erase of the last, unless something listens.
  bool Insert(StorageLife& storage) override;
  Ended Erase(std::shared_ptr<StorageLife> storage) override;
  // Only the single thread of a forked child calls this.
  void ForEachInChild(absl::FunctionRef<void(ManagedStorage&)> visit) const;

  // Between these two calls operations are seen even if nothing is managed. Any
  // number of listeners may overlap.
  void BeginListening();
  void EndListening();
  // Operations wait at this gate before anything is pinned; null takes it away.
  // There is one gate at a time, which lives for ever.
  void SetGate(OperationGate* gate) {
    gate_.store(gate, std::memory_order_release);
  }
  OperationGate* gate() const { return gate_.load(std::memory_order_acquire); }
  // These ask the gate. Without a gate nothing waits.
  absl::Status Await(const c10::Storage& storage, bool is_written) const {
    OperationGate* const gate = this->gate();
    return gate == nullptr ? absl::OkStatus()
                           : gate->Await(storage, is_written);
  }
  bool IsFree(const c10::Storage& storage, bool is_written) const {
    OperationGate* const gate = this->gate();
    return gate == nullptr || gate->IsFree(storage, is_written);
  }

  // Keeps the storage in memory until the innermost operation of the calling
  // thread has ended, and takes over the caller's pin. It serves a storage that
  // is managed during that operation, which may be about to read it. The pin
  // ends at once when the thread is in no operation.
  static void KeepUntilEnd(ManagedStorage& storage);
  // Returns whether the innermost operation of the calling thread is to be
  // called part by part, as its storages do not fit a window together
  // (operation/list_operators.h). None of them is pinned then.
  static bool IsInParts();
  // Returns whether operations of the calling thread are seen at all.
  static bool IsSeen();

  // Returns how many operations were not seen, since there was no memory to
  // note them.
  int64_t failures() const { return failures_.load(); }
  void CountFailure() { failures_.fetch_add(1); }

 private:
  OperationNet() = default;

  StorageRegistry registry_;
  std::atomic<int64_t> failures_ = 0;
  std::atomic<OperationGate*> gate_ = nullptr;
  void Listen() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StopIfIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeforeFork();
  void AfterFork();

  OrderedMutex mutex_{LockRank::kOperationNet};
  int listeners_ ABSL_GUARDED_BY(mutex_) = 0;
  std::optional<uint64_t> handle_ ABSL_GUARDED_BY(mutex_);  // while listening
};

}  // namespace terrace
