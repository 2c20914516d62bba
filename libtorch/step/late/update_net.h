// Sees every operation that LibTorch dispatches, on any thread, before it runs,
// while a late step is pending: it waits for what it takes, before the hook
// brings that. A backward pass waits for all of them with its first function.
//
// An update that failed does not end the operation here, since LibTorch
// swallows what an observer throws: a message on the storage does, when the
// operation looks at its bytes.
//
// What reads or writes memory without an operation (an address or an array
// that a program took before, what torch.compile made) is not seen.
//
// While none is pending, operations are not seen and cost nothing. A process
// that is forked waits first, so that its child has whole parameters.
//
// Thread-safe. A process has it once, as it has its OperationNet.
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

  // Lives for ever.
  static UpdateNet& Get();

  // Operations that begin after this wait. Until Erase; one that is done goes
  // by itself.
  void Insert(std::shared_ptr<PendingStorages> pending)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void Erase(const PendingStorages& pending) ABSL_LOCKS_EXCLUDED(mutex_);
  List pending() const ABSL_LOCKS_EXCLUDED(mutex_);
  // One that failed is tried again; not while the process is forked.
  void BeginAgain(PendingStorages& pending) ABSL_LOCKS_EXCLUDED(mutex_);

  void AwaitOperands(const at::RecordFunction& function) override;
  absl::Status Await(const c10::Storage& storage, bool is_written) override;
  bool IsFree(const c10::Storage& storage, bool is_written) override;
  bool IsAwaited() override;
  void AwaitEverything() override;
  // Of what is to be written there.
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
  bool is_listening_ ABSL_GUARDED_BY(mutex_) = false;  // while there are
};

}  // namespace terrace
