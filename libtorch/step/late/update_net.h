// Sees every operation that LibTorch dispatches, on any thread, before it runs,
// while a late step is pending. The operation waits for the updates of its
// operands before the hook brings their bytes. A backward pass waits for all
// updates with its first function.
//
// An update that failed does not end the operation here, since LibTorch
// swallows the exceptions of an observer. A message on the storage ends the
// operation when it looks at the storage's bytes.
//
// Code that reads or writes memory without an operation (by an address or an
// array that a program took before, or compiled by torch.compile) is not seen.
//
// While no step is pending, operations are not seen and cost nothing. A process
// that forks waits for the updates first, so that its child has whole
// parameters.
//
// Thread-safe. A process has one net, as it has one OperationNet.
#pragma once

#include <ATen/record_function.h>
#include <c10/core/Storage.h>

#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/threads/lock_order.h"
#include "libtorch/hook/operation_gate.h"
#include "libtorch/step/late/pending_storages.h"

namespace terrace {

class UpdateNet final : public OperationGate {
 public:
  using List = std::vector<std::shared_ptr<PendingStorages>>;

  // The net lives for ever.
  static UpdateNet& Get();

  // Operations that begin after this call wait for the step, until Erase. The
  // next operation erases a step that is done.
  void Insert(std::shared_ptr<PendingStorages> pending)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Erase(const PendingStorages& pending) ABSL_LOCKS_EXCLUDED(mutex_);
  List pending() const ABSL_LOCKS_EXCLUDED(mutex_);
  // A step that failed is tried again. Blocks while the process is forked.
  void BeginAgain(PendingStorages& pending) ABSL_LOCKS_EXCLUDED(mutex_);

  void AwaitOperands(const at::RecordFunction& function) override;
  absl::Status Await(const c10::Storage& storage, bool is_written) override;
  bool IsFree(const c10::Storage& storage, bool is_written) override;
  // Returns whether a thread waits now, here or for the end of all updates.
  bool IsAwaited();
  void AwaitEverything() override;
  // Waits for a storage that is about to be written.
  absl::Status Await(const c10::Storage& storage) {
    return Await(storage, /*is_written=*/true);
  }

 private:
  UpdateNet() = default;
  void Listen() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeforeFork();
  void AfterFork();
  void AfterForkInChild();

  mutable OrderedMutex mutex_{LockRank::kUpdateNet};
  List pending_ ABSL_GUARDED_BY(mutex_);
  bool is_listening_ ABSL_GUARDED_BY(mutex_) = false;  // steps are pending
};

}  // namespace terrace
