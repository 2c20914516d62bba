#include "libtorch/hook/replacements.h"

#include <ATen/core/Tensor.h>

#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "libtorch/hook/operation_net.h"

namespace terrace {

void Replacements::Add(std::shared_ptr<ManagedStorage> storage,
                       const Tensors& tensors) {
  MutexLock lock(mutex_);
  const auto found = absl::c_find_if(
      waiting_, [&](const Waiting& each) { return each.storage == storage; });
  if (found == waiting_.end()) {
    waiting_.push_back({std::move(storage), tensors});
  } else {
    found->tensors.insert(found->tensors.end(), tensors.begin(), tensors.end());
  }
  is_empty_.store(false);
}

absl::Status Replacements::Try(StorageOwner& owner) {
  absl::Status first;
  if (is_empty_.load()) return first;
  std::vector<Waiting> waiting;
  {
    MutexLock lock(mutex_);
    waiting.swap(waiting_);
  }
  std::erase_if(waiting, [&](Waiting& each) {
    const absl::Status status = Replace(owner, each);
    if (!absl::IsFailedPrecondition(status)) first.Update(status);
    return status.ok();
  });
  MutexLock lock(mutex_);
  std::move(waiting.begin(), waiting.end(), std::back_inserter(waiting_));
  is_empty_.store(waiting_.empty());
  return first;
}

absl::Status Replacements::Retry(StorageOwner& owner, ByteWindow& window,
                                 const Storages& storages) {
  if (window.Retry()) return Try(owner);  // LibTorch can use all again
  return RetryFailed(owner, storages);
}

absl::Status Replacements::RetryRefused(StorageOwner& owner,
                                        Storages storages) {
  std::erase_if(storages,
                [](const auto& storage) { return !storage->lacked_room(); });
  return RetryFailed(owner, storages);
}

absl::Status Replacements::RetryFailed(StorageOwner& owner,
                                       const Storages& storages) {
  absl::Status updating;
  for (const std::shared_ptr<ManagedStorage>& storage : storages) {
    if (storage->word().state() != Residency::kFailed) continue;
    const std::vector<at::Tensor> tensors = storage->Tensors();
    if (tensors.empty()) continue;
    // The update writes to the present storage, which is to stay until then.
    if (!OperationNet::Get().IsFree(tensors.front().storage(),
                                    /*is_written=*/true)) {
      updating.Update(absl::FailedPreconditionError(
          absl::StrCat("updates of tensor '", storage->name(),
                       "' are to be flushed first")));
      continue;
    }
    if (!storage->word().BeginRetry()) continue;
    storage->word().End(Residency::kCold);
    Tensors waiting;
    for (const at::Tensor& each : tensors) {
      waiting.emplace_back(each.getIntrusivePtr());
    }
    Add(storage, waiting);
  }
  absl::Status status = Try(owner);
  status.Update(updating);
  if (!is_empty_.load()) {
    status.Update(absl::FailedPreconditionError(
        "a tensor that cannot be used again is leased or in use"));
  }
  return status;
}

void Replacements::Clear() {
  std::vector<Waiting> waiting;  // ends without the lock
  MutexLock lock(mutex_);
  waiting.swap(waiting_);
  is_empty_.store(true);
}

absl::Status Replacements::Replace(StorageOwner& owner, Waiting& waiting) {
  std::vector<at::Tensor> tensors;
  for (const StorageOwner::WeakTensor& weak : waiting.tensors) {
    at::Tensor tensor(weak.lock());
    if (!tensor.defined() || !tensor.has_storage()) continue;
    const c10::Storage& storage = tensor.storage();
    if (storage.unsafeGetStorageImpl() != waiting.storage->key()) continue;
    tensors.push_back(std::move(tensor));
  }
  if (tensors.empty()) return absl::OkStatus();
  TERRACE_RETURN_IF_ERROR(owner.Replace(*waiting.storage, tensors.front()));
  for (const at::Tensor& each : tensors) {
    each.unsafeGetTensorImpl()->set_storage_keep_dtype(
        tensors.front().storage());
  }
  return absl::OkStatus();
}

}  // namespace terrace
