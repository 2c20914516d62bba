// The storages that one hook manages: takes them in, finds them by a tensor,
// lets them go when their storage dies or all at once. Lives on, closed, for
// storages that are left without bytes.
//
// Thread-safe. Until Close has returned, the Runtime is used.
#pragma once

#include <ATen/core/Tensor.h>
#include <sys/types.h>

#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "runtime/base/mutex.h"
#include "runtime/torch/hook/managed_storage.h"
#include "runtime/torch/hook/replacements.h"
#include "runtime/torch/hook/window/byte_window.h"
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
  // As Hook::Close; `restore`: kRestore.
  absl::Status Close(bool restore);
  // Those whose storages have died, or have other bytes.
  void Sweep();

  void OnGone(std::shared_ptr<ManagedStorage> storage) override;
  void OnRefused(const absl::Status& why) override { NoteError(why); }
  absl::Status Replace(ManagedStorage& storage, at::Tensor tensor) override;
  void ReplaceLater(std::shared_ptr<ManagedStorage> storage,
                    std::vector<WeakTensor> tensors) override;
  // As Hook::Retry.
  absl::Status Retry() { return replacements_.Retry(*this, window_, All()); }
  // What of it is in use no more: a lease has ended.
  void ReplaceUnused() { replacements_.Try(*this).IgnoreError(); }

  ByteWindow& window() { return window_; }
  const ByteWindow& window() const { return window_; }
  // How many, and their bytes.
  int64_t count() const;
  int64_t size_bytes() const;
  // The first of a fetch, else of an update that an operation waited for, or of
  // what left a tensor ordinary: a Replace, or a gradient that the Runtime
  // refused.
  absl::Status error() const {
    const absl::Status first = window_.stats().first_error;
    MutexLock lock(error_mutex_);
    return first.ok() ? other_error_ : first;
  }
  void NoteError(const absl::Status& why) {
    MutexLock lock(error_mutex_);
    other_error_.Update(why);
  }
  // As Hook::blocked.
  std::vector<BlockedOn> blocked() const;

 private:
  using Storages = std::vector<std::shared_ptr<ManagedStorage>>;

  // Of storages that nothing has beside operations.
  absl::Status AddNow(absl::Span<const NamedTensor> tensors);
  absl::StatusOr<Storages> Choose(absl::Span<const NamedTensor> tensors);
  absl::Status Fill(const Storages& storages);
  // It is found no more.
  void Erase(const ManagedStorage& storage);
  Storages All() const;
  void EndChild();
  // False: it was begun before, and is done. FailedPrecondition as Close.
  absl::StatusOr<bool> BeginClose();
  // With restore into memory, else refused; it is no more managed then, unless
  // an operation has it. One that `waits` and finds no room stays as it is.
  absl::Status LetGo(ManagedStorage& storage, bool restore, bool waits = false);
  // All that there are; the first error.
  absl::Status LetGoAll(bool restore);

  const pid_t process_;
  const absl::Duration patience_;
  ByteWindow window_;
  Replacements replacements_;
  mutable Mutex error_mutex_;  // the last of all
  absl::Status other_error_ ABSL_GUARDED_BY(error_mutex_);
  mutable Mutex mutex_;
  CondVar swept_;
  absl::flat_hash_map<const void*, std::shared_ptr<ManagedStorage>> storages_
      ABSL_GUARDED_BY(mutex_);
  Storages gone_ ABSL_GUARDED_BY(mutex_);
  // Not managed any more, but their storages live.
  Storages retired_ ABSL_GUARDED_BY(mutex_);
  std::thread::id closing_ ABSL_GUARDED_BY(mutex_);  // while one does
  int sweeping_ ABSL_GUARDED_BY(mutex_) = 0;         // threads
  bool closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace terrace
