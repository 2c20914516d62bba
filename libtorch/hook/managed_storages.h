// The storages that one hook manages: takes them in, finds them by a tensor,
// gives a tensor another one. Their lives are StorageLives'. Lives on, closed,
// for storages that are left without bytes.
//
// Thread-safe. Until Close has returned, the Runtime is used.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "base/process.h"
#include "base/threads/lock_order.h"
#include "libtorch/hook/life/storage_lives.h"
#include "libtorch/hook/managed_storage.h"
#include "libtorch/hook/replacements.h"
#include "libtorch/hook/window/byte_window.h"
#include "terrace/torch/hook.h"

namespace terrace {

class ManagedStorages final
    : public StorageOwner,
      public std::enable_shared_from_this<ManagedStorages> {
 public:
  ManagedStorages(Runtime& runtime, const ByteWindowOptions& options);
  ~ManagedStorages() override;

  // As Hook::Manage. Blocks until no update reads or writes their memory;
  // FailedPrecondition: one that failed would go on there.
  absl::Status Add(absl::Span<const NamedTensor> tensors);
  // From within an operation of the calling thread, a tensor that is part of a
  // step, with its number there (WindowTensor::SetNumber): stays here until
  // that has ended. What is not a dense tensor in memory of LibTorch's own with
  // at most so many bytes, what any hook manages, and what an update writes or
  // reads, is left as it is: null.
  absl::StatusOr<std::shared_ptr<ManagedStorage>> AddNumbered(
      const NamedTensor& tensor, int64_t number, int64_t most_bytes);
  // Null: it is not managed here. Lives while the tensor does.
  std::shared_ptr<ManagedStorage> Find(const at::Tensor& tensor) const;
  // The same, pinned, as what is no operation has it; waits while it enters or
  // leaves.
  std::shared_ptr<ManagedStorage> Pin(const at::Tensor& tensor);
  // As Hook::Close; `restore`: kRestore.
  absl::Status Close(bool restore);
  // Those whose storages have died, or have other bytes.
  void Sweep() { lives_.Sweep(); }

  void OnGone(std::shared_ptr<ManagedStorage> storage) override;
  void OnRefused(const absl::Status& why) override { NoteError(why); }
  absl::Status Replace(ManagedStorage& storage, at::Tensor tensor) override;
  void ReplaceLater(std::shared_ptr<ManagedStorage> storage,
                    std::vector<WeakTensor> tensors) override;
  // As Hook::Retry.
  absl::Status Retry() { return replacements_.Retry(*this, window_, All()); }
  // A lease, between its pin and the pin's end.
  void BeginLease(ManagedStorage& storage) { lives_.BeginLease(storage); }
  void EndLease(ManagedStorage& storage);

  ByteWindow& window() { return window_; }
  const ByteWindow& window() const { return window_; }
  bool closed() const { return lives_.closed(); }
  // How many, and their bytes.
  int64_t count() const { return lives_.count(); }
  int64_t size_bytes() const { return lives_.size_bytes(); }
  // The first of a fetch, else of an update that an operation waited for, or of
  // what left a tensor ordinary: a Replace, or a gradient that the Runtime
  // refused.
  absl::Status error() const {
    const absl::Status first = window_.stats().first_error;
    OrderedLock lock(error_mutex_);
    return first.ok() ? other_error_ : first;
  }
  void NoteError(const absl::Status& why) {
    OrderedLock lock(error_mutex_);
    other_error_.Update(why);
  }
  // For a name that another tensor has; each once.
  int64_t NextNumber() { return next_number_.fetch_add(1) + 1; }
  // As Hook::blocked.
  std::vector<BlockedOn> blocked() const;

 private:
  using Storages = std::vector<std::shared_ptr<ManagedStorage>>;

  // A forked child has none of the threads, and a lock may be held for ever.
  absl::Status CheckProcess() const;
  // Of storages that nothing has beside operations.
  absl::Status AddNow(absl::Span<const NamedTensor> tensors);
  absl::StatusOr<StorageLives::Storages> Choose(
      absl::Span<const NamedTensor> tensors);
  // One that is managed by this, or null; waits for other threads that have it.
  absl::StatusOr<std::shared_ptr<ManagedStorage>> Settled(
      const NamedTensor& tensor) const;
  Storages All() const;
  void EndChild();

  const Process process_;
  const absl::Duration patience_;
  ByteWindow window_;
  StorageLives lives_;
  Replacements replacements_;
  std::atomic<int64_t> next_number_ = 0;
  mutable OrderedMutex error_mutex_{LockRank::kHookError};
  absl::Status other_error_ ABSL_GUARDED_BY(error_mutex_);
};

}  // namespace terrace
