// Storages that cannot be used again wait here: their tensors get other
// storages as soon as nothing uses them.
//
//   replacements.Add(storage, tensors);
//   replacements.Try(owner);             // whenever a use has ended
//   replacements.Retry(owner, window, storages);
//
// The class is thread-safe. Tensors that end while they wait are left out.
// While no storage waits, a Try costs nothing.
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
  // Replaces the storages that are not in use, each for all of its tensors.
  // Returns the first error of a fetch; its storage waits for the next Try.
  absl::Status Try(StorageOwner& owner) ABSL_LOCKS_EXCLUDED(mutex_);
  // Lets storages that have failed be fetched again. Where LibTorch cannot use
  // such a storage again, its bytes are fetched, and the tensors that are
  // managed with it get another storage; all else that shares it is refused for
  // ever, and so are tensors that autograd saved. Returns the error of a Try.
  // Fails with FailedPrecondition when a storage is in use, which a later Try
  // replaces, and when an update of a storage goes on or has failed.
  absl::Status Retry(StorageOwner& owner, ByteWindow& window,
                     const Storages& storages) ABSL_LOCKS_EXCLUDED(mutex_);
  // Does the same for the storages that an operation was refused for want of
  // room, and for no others.
  absl::Status RetryRefused(StorageOwner& owner, Storages storages)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // The owner has closed: storages that wait stay as they are.
  void Clear() ABSL_LOCKS_EXCLUDED(mutex_);

 private:
  struct Waiting {
    std::shared_ptr<ManagedStorage> storage;
    Tensors tensors;
  };

  absl::Status RetryFailed(StorageOwner& owner, const Storages& storages)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns OK when the storage is replaced, or when none of its tensors is
  // left.
  static absl::Status Replace(StorageOwner& owner, Waiting& waiting);

  Mutex mutex_;
  std::vector<Waiting> waiting_ ABSL_GUARDED_BY(mutex_);
  std::atomic<bool> is_empty_ = true;  // whether waiting_ is
};

}  // namespace terrace
