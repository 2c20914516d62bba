// The storages that one hook manages, and the one place where their lives
// change (residency_word.h has the picture): each enters, is managed, leaves
// and has gone, under this object's lock, so that operations on any thread,
// deaths of tensors and a Close meet in one order.
//
//   lives.Add({a, b});          // entering: filled from where they are
//   lives.Sweep();              // those whose storages have died
//   lives.Close({.restore = true});
//
// What an operation finds it pins, or waits until it is managed or gone, and
// looks again. So a Close need not be alone: it stops new users first, waits
// for those that there are, and then either all leave or nothing has changed.
//
// Thread-safe. The window's Runtime is used until Close has returned; index and
// window outlive it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"
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

  // Takes their bytes over from where they are: all, or none, which have their
  // bytes as before; what was lost on the way back is named. With `are_pinned`
  // each is managed with a pin of the caller's. FailedPrecondition: closed, or
  // another hook has one; Aborted: another thread has just added one, or it is
  // about to go: choose again. Else the window's errors.
  absl::Status Add(const Storages& storages, bool are_pinned = false);
  // With its bytes, into memory of its own. FailedPrecondition: it is in use;
  // or those of a fetch, and nothing has changed. `then` is called before it is
  // found no more.
  absl::Status MoveOut(const Storage& storage, absl::FunctionRef<void()> then);

  // Null: it is not managed here.
  Storage Find(const void* address) const;
  Storages All() const;
  bool closed() const;
  int64_t count() const;
  int64_t size_bytes() const;

  // Its storage has died, or has other bytes.
  void NoteDied(Storage storage);
  // What has died goes, unless an operation has it still.
  void Sweep();

  // A lease's pin is the program's, and may last: no Close waits for it, and no
  // operation. Between the pin and its end.
  void BeginLease(StorageLife& storage) {
    storage.BeginWaiting();  // nothing waits for the program
    leases_.fetch_add(1);
  }
  void EndLease(StorageLife& storage) {
    leases_.fetch_sub(1);
    storage.EndWaiting();
  }

  struct CloseOptions {
    bool restore = true;  // into memory of their own; else refused
    // For operations that go on.
    absl::Duration patience = absl::Seconds(5);
  };
  // FailedPrecondition, with a tensor's name: in use, and nothing has changed.
  // Else closed, by this call or another one, and the first error of a tensor
  // that could not be brought, which is refused from then on.
  absl::Status Close(const CloseOptions& options);
  // In a forked child, by its only thread, whatever the lock is.
  void EndChild() { is_closed_.store(true); }

 private:
  // Aborted as Add's.
  absl::Status Enter(const Storages& storages) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status Fill(const Storages& storages, bool are_pinned);
  // Of a failed Add: what is managed already and cannot be brought back.
  std::string TakeBack(const Storages& storages);
  void SetLife(StorageLife& storage, Life life, bool is_pinned = false)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // False: it is in use, or not managed.
  bool BeginLeave(StorageLife& storage) ABSL_LOCKS_EXCLUDED(mutex_);
  // One that enters or leaves has gone.
  void End(const Storage& storage) ABSL_LOCKS_EXCLUDED(mutex_);
  void Drop(const Storage& storage, StorageIndex::Ended& ended)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // False: closed before. FailedPrecondition as Close.
  absl::StatusOr<bool> BeginClose(absl::Duration patience)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // All that there are leave at once. False: one cannot yet, and all are
  // stopping.
  bool LeaveAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void ManageAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::string InUse() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::Status LetGoAll(bool restore);
  // One that leaves. It has gone then, but for one that `waits` and finds no
  // room.
  absl::Status LetGo(const Storage& storage, bool restore, bool waits);

  StorageIndex& index_;
  ByteWindow& window_;
  std::atomic<int64_t> leases_ = 0;
  std::atomic<bool> is_closed_ = false;  // written with the lock
  mutable OrderedMutex mutex_{LockRank::kStorageLives};
  CondVar changed_;
  absl::flat_hash_map<const void*, Storage> members_ ABSL_GUARDED_BY(mutex_);
  int64_t size_bytes_ ABSL_GUARDED_BY(mutex_) = 0;   // of members
  Storages died_ ABSL_GUARDED_BY(mutex_);            // members
  std::thread::id closing_ ABSL_GUARDED_BY(mutex_);  // while one does
};

}  // namespace terrace
