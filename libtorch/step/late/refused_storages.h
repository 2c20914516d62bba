// The storages that operations were refused, because an update of theirs had
// failed, are made usable again here once the update has succeeded or is given
// up.
//
// LibTorch before 2.12 cannot take the message off a managed storage again:
// there the tensors get new storages with the same bytes, and views that were
// made of them before go on throwing.
//
// One thread at a time makes these calls for one PendingStorages.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "libtorch/step/late/pending_storages.h"

namespace terrace {

// Returns the tensors that may have refused storages. It is called only where
// a storage was refused: the program may be changing the tensors of a step that
// goes well, on another thread.
using TensorsOfStep = absl::FunctionRef<std::vector<at::Tensor>()>;

// Makes the refused storages of these tensors usable again. A storage that
// cannot be yet stays refused, and the first such error is returned.
absl::Status RestoreRefused(PendingStorages& pending, TensorsOfStep tensors);

// Has the owners of managed storages that are still refused replace them in
// these tensors, as soon as they are not in use.
void RestoreRefusedLater(PendingStorages& pending, TensorsOfStep tensors);

}  // namespace terrace
