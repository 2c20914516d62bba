// StorageLives has the storages that one hook manages, and is the one place
// where their lives change (residency_word.h has the picture): each storage
// enters, is managed, leaves and has gone, under this object's lock, so that
// operations on any thread, deaths of tensors and a Close meet in one order.
//
//   lives.Add({a, b});          // entering: filled from where they are
//   lives.Sweep();              // those whose storages have died
//   lives.Close({.restore = true});
//
// An operation pins a storage that it finds, or waits until the storage is
// managed or gone, and looks again. So a Close need not be alone: it stops new
// users first, waits for those that there are, and then either all storages
// leave or nothing has changed.
//
// The class is thread-safe. The window's Runtime is used until Close has
// returned; index and window outlive the object.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/threads/lock_order.h"
#include "libtorch/hook/life/storage_life.h"
#include "libtorch/hook/window/byte_window.h"

namespace terrace {

class StorageLives {
 public:
  using Storage = std::shared_ptr<StorageLife>;
  using Storages = std::vector<Storage>;

  StorageLives(StorageIndex& index, ByteWindow& window)
      : index_(index), window_(window) {}
  StorageLives(const StorageLives&) = delete;
  StorageLives& operator=(const StorageLives&) = delete;

  // Takes the storages' bytes over from where they are, all or none. After an
  // error the storages have their bytes as before, and the error names those
  // that were lost on the way back. With `are_pinned` each storage is managed
  // with a pin of the caller's. Fails with FailedPrecondition when the hook is
  // closed, or when another hook has a storage; with Aborted when another
  // thread has just added a storage, or it is about to go, and the caller is to
  // choose again; and else with the window's errors.
  absl::Status Add(const Storages& storages, bool are_pinned = false);

  // Returns null when the storage is not managed here.
  Storage Find(const void* address) const;
  Storages All() const;
  bool closed() const;
  int64_t count() const;
  int64_t size_bytes() const;

  // Notes that the storage has died, or has other bytes.
  void NoteDied(Storage storage);
  // Storages that have died go, unless an operation or an eviction has them
  // still. It waits for neither, and the next Sweep lets these go.
  void Sweep();

  // A lease's pin is the program's, and may last: no Close and no operation
  // waits for it. A lease calls these two between its pin and the pin's end.
  void BeginLease(StorageLife& storage) {
    window_.BeginWaiting(storage);  // nothing waits for the program
    leases_.fetch_add(1);
  }
  void EndLease(StorageLife& storage) {
    leases_.fetch_sub(1);
    window_.EndWaiting(storage);
  }

  struct CloseOptions {
    bool restore = true;  // into memory of their own; else refused
    // How long a Close waits for operations that go on.
    absl::Duration patience = absl::Seconds(5);
  };
  // Fails with FailedPrecondition, which names a tensor that is in use, and
  // changes nothing. Otherwise the hook is closed, by this call or another one,
  // and Close returns the first error of a tensor that could not be brought,
  // which is refused from then on.
  absl::Status Close(const CloseOptions& options);
  // Only the single thread of a forked child calls this, whatever the lock is.
  void EndChild() { is_closed_.store(true); }

 private:
  // Fails with the FailedPrecondition and the Aborted of Add.
  absl::Status Enter(const Storages& storages) ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns the other storages that have the name of one of `storages`.
  Storages NamedAs(const Storages& storages) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Waits until no thread evicts or removes the storages. Returns true when all
  // of them have died and go, so that their names are free, or will be once the
  // thread that removes them has done so.
  bool AwaitEnds(const Storages& storages) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Fill(const Storages& storages, bool are_pinned);
  // Takes the storages of a failed Add back. Returns the names of those that
  // are managed already and cannot be brought back.
  std::string TakeBack(const Storages& storages);
  void SetLife(StorageLife& storage, Life life, bool is_pinned = false)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Returns false when the storage is in use, or is not managed.
  bool BeginLeave(StorageLife& storage) ABSL_LOCKS_EXCLUDED(mutex_);
  // A storage that enters or leaves has gone.
  void End(const Storage& storage) ABSL_LOCKS_EXCLUDED(mutex_);
  void Drop(const Storage& storage, StorageIndex::Ended& ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Returns false when the hook was closed before. Fails with
  // FailedPrecondition as Close does.
  absl::StatusOr<bool> BeginClose(absl::Duration patience)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // All storages leave at once. Returns false when one cannot leave yet; all
  // are stopping then.
  bool LeaveAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ManageAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string InUse() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status LetGoAll(bool restore);
  // Lets go of a storage that leaves. It has gone then, unless `waits` is set
  // and there is no room for it.
  absl::Status LetGo(const Storage& storage, bool restore, bool waits);

  StorageIndex& index_;
  ByteWindow& window_;
  std::atomic<int64_t> leases_ = 0;
  std::atomic<bool> is_closed_ = false;  // written with the lock
  mutable OrderedMutex mutex_{LockRank::kStorageLives};
  CondVar changed_;
  absl::flat_hash_map<const void*, Storage> members_ ABSL_GUARDED_BY(mutex_);
  int64_t size_bytes_ ABSL_GUARDED_BY(mutex_) = 0;   // of members
  Storages died_ ABSL_GUARDED_BY(mutex_);            // members still
  std::thread::id closing_ ABSL_GUARDED_BY(mutex_);  // who closes now
};

}  // namespace terrace
