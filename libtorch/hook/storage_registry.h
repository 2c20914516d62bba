// Which storages are managed: address -> StorageLife. Operations ask for each
// of their inputs, most of which are not, so that a look costs a few
// nanoseconds and takes no lock.
//
// An address stands for its storage for as long as it is here, since the
// StorageLife keeps a weak reference to it. What Find answers lives on while
// the storage asked for does, or a pin on it: what is erased before is kept.
//
// Find may run on any thread beside anything. The others take a lock.
// Places that were erased are used again, so that a table is replaced only when
// there are more storages at a time than ever before, by one twice as large.
// The one before is kept until the registry ends, as a look may be going
// through it: all of them together are smaller than the last.
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

  // Null: it is not managed.
  StorageLife* Find(const void* key) const;
  // In a forked child, by its only thread, whatever the lock is.
  void ForEachInChild(absl::FunctionRef<void(StorageLife&)> visit) const;

  // False, and nothing changes: the key is there.
  bool Insert(const void* key, StorageLife* storage);
  // Of one that is; nothing if it is not.
  void Erase(const void* key);
  // One that was erased lives for as long as its storage. What does no longer
  // is the caller's.
  using Kept = std::vector<std::shared_ptr<StorageLife>>;
  Kept Keep(std::shared_ptr<StorageLife> storage);
  size_t size() const;
  // Of all tables that it keeps.
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
  size_t looked_at_kept_ ABSL_GUARDED_BY(mutex_) = 0;  // how many lived then
};

}  // namespace terrace
