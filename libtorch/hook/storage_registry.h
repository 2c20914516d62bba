// The registry knows which storages are managed: address -> StorageLife.
// Operations ask for each of their inputs, most of which are not managed, so
// that a look costs a few nanoseconds and takes no lock.
//
// An address stands for its storage for as long as it is here, since the
// StorageLife keeps a weak reference to the storage. The StorageLife that Find
// returns lives while the storage that was asked for does, or a pin on it: a
// StorageLife that is erased before is kept.
//
// Find may run on any thread beside anything. The other functions take a lock,
// except in a forked child. Places that were erased are used again, so that a
// table is replaced only when there are more storages at a time than ever
// before, by a table twice as large. The old table is kept until the registry
// ends, as a look may be going through it: all old tables together are smaller
// than the last.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "base/threads/lock_order.h"

namespace terrace {

class StorageLife;

class StorageRegistry {
 public:
  StorageRegistry();
  ~StorageRegistry();
  StorageRegistry(const StorageRegistry&) = delete;
  StorageRegistry& operator=(const StorageRegistry&) = delete;

  // Returns null when the storage is not managed.
  StorageLife* Find(const void* key) const;
  // Only the single thread of a forked child calls this, whatever the lock is.
  void ForEachInChild(absl::FunctionRef<void(StorageLife&)> visit) const;

  // Returns false, and changes nothing, when the key is there already.
  bool Insert(const void* key, StorageLife* storage);
  // Erases a key; does nothing when it is not there.
  void Erase(const void* key);
  // Keeps a StorageLife that was erased for as long as its storage lives.
  // Returns those that are kept no longer, which are the caller's.
  using Kept = std::vector<std::shared_ptr<StorageLife>>;
  Kept Keep(std::shared_ptr<StorageLife> storage);
  size_t size() const;
  // The places of all tables that the registry keeps.
  size_t places() const;

 private:
  struct Place {
    std::atomic<const void*> key = nullptr;
    std::atomic<StorageLife*> storage = nullptr;
  };
  class Table;

  void Put(Table& table, const void* key, StorageLife* storage);
  void Grow() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable OrderedMutex mutex_{LockRank::kStorageRegistry};
  std::atomic<const Table*> table_;  // the last of tables_
  std::atomic<uint64_t> puts_ = 0;
  std::vector<std::unique_ptr<Table>> tables_ ABSL_GUARDED_BY(mutex_);
  size_t size_ ABSL_GUARDED_BY(mutex_) = 0;
  Kept kept_ ABSL_GUARDED_BY(mutex_);
  size_t looked_at_kept_ ABSL_GUARDED_BY(mutex_) = 0;  // kept at the last look
};

}  // namespace terrace
