// A ManagedStorages object has the storages that one hook manages: it takes
// them in and finds them by a tensor. StorageLives has their lives. The object
// lives on, closed, for storages that are left without bytes.
//
// It is thread-safe. It uses the Runtime until Close has returned.
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
#include "libtorch/hook/window/byte_window.h"
#include "terrace/torch/hook.h"

namespace terrace {

class ManagedStorages final
    : public StorageOwner,
      public std::enable_shared_from_this<ManagedStorages> {
 public:
  // Without a device the hook manages CPU tensors.
  ManagedStorages(Runtime& runtime, const ByteWindowOptions& options,
                  std::shared_ptr<DeviceWork> device = nullptr);
  ~ManagedStorages() override;

  // Does what Hook::Manage describes. Blocks until no update reads or writes
  // the tensors' memory. Fails with FailedPrecondition where an update that
  // failed would go on there. With `parameter` the tensors are its gradients.
  absl::Status Add(absl::Span<const NamedTensor> tensors,
                   const ManagedStorage* parameter = nullptr);
  // An operation of the calling thread hands over a tensor that is part of a
  // step, with its number there (WindowTensor::SetNumber), and the tensor stays
  // in memory until the operation has ended; or an operation that has ended has
  // made the tensor, and the number is -1. Returns null, and leaves the
  // tensor as it is, when it is no dense tensor in memory of LibTorch's own
  // with at most `most_bytes`; when any hook manages it, or an update or a
  // collective uses it; when there is no room for it; and when the hook is
  // closed.
  absl::StatusOr<std::shared_ptr<ManagedStorage>> AddNumbered(
      const NamedTensor& tensor, int64_t number, int64_t most_bytes);
  // Returns null when this hook does not manage the storage. The result lives
  // at least as long as the tensor.
  std::shared_ptr<ManagedStorage> Find(const at::Tensor& tensor) const;
  // Does what ByteWindow::FetchAhead describes.
  void FetchAhead(absl::Span<const std::shared_ptr<ManagedStorage>> storages);
  // Finds the storage and pins it for a user that is no operation. Waits while
  // the storage enters or leaves.
  std::shared_ptr<ManagedStorage> Pin(const at::Tensor& tensor);
  // Does what Hook::Close describes; `restore` stands for kRestore.
  absl::Status Close(bool restore);
  // Lets go of storages that have died, or that have other bytes.
  void Sweep() {
    if (process_.IsCurrent()) lives_.Sweep();
  }

  void OnGone(std::shared_ptr<ManagedStorage> storage) override;
  void OnRefused(const absl::Status& why) override { NoteError(why); }
  // Does what Hook::Retry describes.
  absl::Status Retry();
  // A lease calls BeginLease once it has its pin; EndLease ends the pin as
  // well.
  void BeginLease(ManagedStorage& storage) { lives_.BeginLease(storage); }
  void EndLease(ManagedStorage& storage);

  ByteWindow& window() { return window_; }
  const ByteWindow& window() const { return window_; }
  bool closed() const { return lives_.closed(); }
  // Fails with FailedPrecondition once the hook is closed, and with Cancelled
  // in a forked child.
  absl::Status CheckOpen() const;
  // The number of managed storages, and their bytes.
  int64_t count() const { return lives_.count(); }
  int64_t size_bytes() const { return lives_.size_bytes(); }
  // Returns the first error of a fetch. Without one it returns the first error
  // of an update that an operation waited for, or of a gradient that the
  // Runtime refused.
  absl::Status error() const {
    const absl::Status first = window_.stats().first_error;
    OrderedLock lock(error_mutex_);
    return first.ok() ? other_error_ : first;
  }
  void NoteError(const absl::Status& why) {
    OrderedLock lock(error_mutex_);
    other_error_.Update(why);
  }
  // Returns a number for a name that another tensor has; no number comes twice.
  int64_t NextNumber() { return next_number_.fetch_add(1) + 1; }
  // Does what Hook::blocked describes.
  std::vector<BlockedOn> blocked() const;

 private:
  using Storages = std::vector<std::shared_ptr<ManagedStorage>>;

  // Fails in a forked child, which has none of the threads, and where a lock
  // may be held for ever.
  absl::Status CheckProcess() const;
  // Adds tensors whose storages nothing but operations may use.
  absl::Status AddNow(absl::Span<const NamedTensor> tensors,
                      const ManagedStorage* parameter);
  absl::StatusOr<StorageLives::Storages> Choose(
      absl::Span<const NamedTensor> tensors, const ManagedStorage* parameter);
  // Returns the tensor's storage if this hook manages it, or null if none does,
  // and fails with FailedPrecondition if another hook does. Waits for other
  // threads that have the storage enter or leave.
  absl::StatusOr<std::shared_ptr<ManagedStorage>> Settled(
      const NamedTensor& tensor) const;
  Storages All() const;
  void EndChild();

  const Process process_;
  const absl::Duration patience_;
  const std::shared_ptr<DeviceWork> work_;  // null: the CPU's
  const c10::Device device_;                // whose tensors are managed
  ByteWindow window_;
  StorageLives lives_;
  std::atomic<int64_t> next_number_ = 0;
  mutable OrderedMutex error_mutex_{LockRank::kHookError};
  absl::Status other_error_ ABSL_GUARDED_BY(error_mutex_);
};

}  // namespace terrace
