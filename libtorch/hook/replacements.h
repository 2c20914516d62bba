// Storages that cannot be used again, whose tensors are to have others as soon
// as nothing uses them.
//
//   replacements.Add(storage, tensors);
//   replacements.Try(owner);             // whenever a use has ended
//   replacements.Retry(owner, window, storages);
//
// Thread-safe. Tensors that end before are left out. While there are none, a
// Try costs nothing.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "base/mutex.h"
#include "libtorch/hook/managed_storage.h"
#include "libtorch/hook/window/byte_window.h"

namespace terrace {

class Replacements {
 public:
  using Tensors = std::vector<StorageOwner::WeakTensor>;
  using Storages = std::vector<std::shared_ptr<ManagedStorage>>;

  Replacements() = default;
  Replacements(const Replacements&) = delete;
  Replacements& operator=(const Replacements&) = delete;

  void Add(std::shared_ptr<ManagedStorage> storage, const Tensors& tensors)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Replaces those that are not in use, each for all of its tensors. The first
  // error of a fetch, which waits for the next Try.
  absl::Status Try(StorageOwner& owner) ABSL_LOCKS_EXCLUDED(mutex_);
  // Of these what has failed may be fetched again. Where LibTorch cannot use
  // its storage again, it is fetched, and the tensors that are managed with it
  // have another one; what else shares it is refused for ever, and so is what
  // autograd saved. The error of a Try; FailedPrecondition: one is in use, and
  // replaced by a later Try, or an update of it goes on or has failed.
  absl::Status Retry(StorageOwner& owner, ByteWindow& window,
                     const Storages& storages) ABSL_LOCKS_EXCLUDED(mutex_);
  // The same of those that an operation was refused for want of room, and of
  // nothing else.
  absl::Status RetryRefused(StorageOwner& owner, Storages storages)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Their owner has closed: those that wait stay as they are.
  void Clear() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Waiting {
    std::shared_ptr<ManagedStorage> storage;
    Tensors tensors;
  };

  absl::Status RetryFailed(StorageOwner& owner, const Storages& storages)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // OK: it is done, or none of its tensors is left.
  static absl::Status Replace(StorageOwner& owner, Waiting& waiting);

  Mutex mutex_;
  std::vector<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> is_empty_ = true;  // waiting_
};

}  // namespace terrace
