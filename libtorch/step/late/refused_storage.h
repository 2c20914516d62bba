// A storage that operations are refused, because an update of a parameter has
// failed: each use of it throws the reason. Once the update has succeeded or is
// given up the storage is usable again, and so is every view of it.
//
// A RefusedStorage does not keep its storage alive. One thread at a time takes
// the refusals of a PendingStorages back, without a lock that an operation
// needs: the storage's last reference may end there.
#pragma once

#include <c10/core/StorageImpl.h>
#include <c10/util/intrusive_ptr.h>

#include "absl/status/status.h"
#include "libtorch/step/late/pending_storages.h"

namespace terrace {

class RefusedStorage {
 public:
  // The caller has a reference to the storage. Where a hook manages the
  // storage, its bytes come and go as before, and the hook is told.
  RefusedStorage(c10::StorageImpl& storage, const absl::Status& why);
  void TakeBack() const;

 private:
  const c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
};

// Takes back what operations were refused for this step.
void TakeRefusalsBack(PendingStorages& pending);

}  // namespace terrace
