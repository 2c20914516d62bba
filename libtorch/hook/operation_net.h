// Sees every operation that LibTorch dispatches, forward and backward, before
// and after it runs: what it reads of managed storages is brought first, and
// stays until its end. The one part of the hook that a process has once, as
// LibTorch's observers are the process's.
//
// A fetch that fails does not end the operation here, since LibTorch swallows
// what an observer throws: the storage's message does, when the operation looks
// at its bytes. In a forked child, which has none of its parent's bytes, each
// storage of the parent's that an operation takes is refused in that way; those
// that the child manages are as any.
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

// Thread-safe.
class OperationNet final : public StorageIndex {
 public:
  // Lives for ever.
  static OperationNet& Get();

  // Null: it is not managed.
  ManagedStorage* Find(const void* key) const;
  // The same of a tensor's storage, if it has one.
  ManagedStorage* Find(const at::Tensor& tensor) const;
  StorageLife* FindLife(const void* key) const { return registry_.Find(key); }
  // The same, pinned as by a thread that has pins; waits while it enters or
  // leaves.
  ManagedStorage* Pin(const void* key) const;
  // As the registry's. Operations that begin after the Insert of the first are
  // seen, and none that begin after the Erase of the last.
  bool Insert(StorageLife& storage) override;
  Ended Erase(std::shared_ptr<StorageLife> storage) override;
  // In a forked child, by its only thread.
  void ForEachInChild(absl::FunctionRef<void(ManagedStorage&)> visit) const;

  // Between these operations are seen though nothing may be managed; any number
  // of them at a time.
  void BeginListening();
  void EndListening();
  // What they wait for before anything is pinned; null: nothing. One at a time,
  // which lives for ever.
  void SetGate(OperationGate* gate) {
    gate_.store(gate, std::memory_order_release);
  }
  OperationGate* gate() const { return gate_.load(std::memory_order_acquire); }
  // As the gate's.
  absl::Status Await(const c10::Storage& storage, bool is_written) const {
    OperationGate* const gate = this->gate();
    return gate == nullptr ? absl::OkStatus()
                           : gate->Await(storage, is_written);
  }
  bool IsAwaited() const {
    OperationGate* const gate = this->gate();
    return gate != nullptr && gate->IsAwaited();
  }
  bool IsFree(const c10::Storage& storage, bool is_written) const {
    OperationGate* const gate = this->gate();
    return gate == nullptr || gate->IsFree(storage, is_written);
  }

  // Of the operations of the calling thread that are under way, one inside
  // another: keeps it here until the innermost has ended; its pin goes over.
  // For what is managed meanwhile, which the operation may be about to read.
  static void KeepUntilEnd(ManagedStorage& storage);
  // Whether those of the calling thread are seen at all.
  static bool IsSeen();

  // Operations that were not seen, since there was no memory to note them.
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
  std::optional<uint64_t> handle_ ABSL_GUARDED_BY(mutex_);  // while they are
};

}  // namespace terrace
