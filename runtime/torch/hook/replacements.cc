#include "runtime/torch/hook/replacements.h"

#include <ATen/core/Tensor.h>

#include <iterator>
#include <utility>

#include "absl/status/status.h"

namespace terrace {

void Replacements::Add(std::shared_ptr<ManagedStorage> storage,
                       Tensors tensors) {
  MutexLock lock(mutex_);
  waiting_.push_back({std::move(storage), std::move(tensors)});
  is_empty_.store(false);
}

void Replacements::Try(StorageOwner& owner) {
  if (is_empty_.load()) return;
  std::vector<Waiting> waiting;
  {
    MutexLock lock(mutex_);
    waiting.swap(waiting_);
  }
  std::erase_if(waiting, [&](Waiting& each) { return Replace(owner, each); });
  MutexLock lock(mutex_);
  std::move(waiting.begin(), waiting.end(), std::back_inserter(waiting_));
  is_empty_.store(waiting_.empty());
}

absl::Status Replacements::Retry(
    StorageOwner& owner, ByteWindow& window,
    const std::vector<std::shared_ptr<ManagedStorage>>& storages) {
  Try(owner);
  absl::Status first;
  const bool is_done = window.Retry().ok();  // LibTorch can use all again
  for (const std::shared_ptr<ManagedStorage>& storage : storages) {
    const std::vector<at::Tensor> tensors = storage->Tensors();
    if (is_done || tensors.empty() || !storage->word().BeginRetry()) continue;
    storage->word().End(Residency::kCold);
    const absl::Status status = owner.Replace(*storage, tensors.front());
    first.Update(status);
    if (status.ok()) continue;
    if (!absl::IsFailedPrecondition(status)) {  // it cannot be fetched
      window.RefuseFetch(*storage, status);
      continue;
    }
    Tensors waiting;
    for (const at::Tensor& each : tensors) {
      waiting.emplace_back(each.getIntrusivePtr());
    }
    Add(storage, std::move(waiting));
  }
  if (!is_empty_.load()) {
    first.Update(absl::FailedPreconditionError(
        "a tensor that cannot be used again is leased or in use"));
  }
  return first;
}

bool Replacements::Replace(StorageOwner& owner, Waiting& waiting) {
  std::vector<at::Tensor> tensors;
  for (const StorageOwner::WeakTensor& weak : waiting.tensors) {
    at::Tensor tensor(weak.lock());
    if (!tensor.defined() || !tensor.has_storage()) continue;
    const c10::Storage& storage = tensor.storage();
    if (storage.unsafeGetStorageImpl() != waiting.storage->key()) continue;
    tensors.push_back(std::move(tensor));
  }
  if (tensors.empty()) return true;
  const absl::Status status = owner.Replace(*waiting.storage, tensors.front());
  if (!status.ok()) return false;  // in use; or a fetch has told why
  for (const at::Tensor& each : tensors) {
    each.unsafeGetTensorImpl()->set_storage_keep_dtype(
        tensors.front().storage());
  }
  return true;
}

}  // namespace terrace
