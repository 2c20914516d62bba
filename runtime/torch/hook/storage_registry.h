// Which storages are managed: StorageImpl* -> ManagedStorage. Operations ask
// for each of their inputs, most of which are not, so that a look costs a few
// nanoseconds and takes no lock.
//
// An address stands for its storage for as long as it is here, since the
// ManagedStorage keeps a weak reference to it. What Find answers lives on while
// the storage asked for does, or a pin on it: Erase it only when neither is the
// case.
//
// Find may run on any thread beside anything. Insert and Erase take a lock.
// Places that were erased are used again, so that a table is replaced only when
// there are more storages at a time than ever before, by one twice as large.
// The one before is kept until the registry ends, as a look may be going
// through it: all of them together are smaller than the last.
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <vector>

#include "runtime/base/mutex.h"

namespace terrace {

class ManagedStorage;

class StorageRegistry {
 public:
  StorageRegistry();
  ~StorageRegistry();
  StorageRegistry(const StorageRegistry&) = delete;
  StorageRegistry& operator=(const StorageRegistry&) = delete;

  // Null: it is not managed.
  ManagedStorage* Find(const void* key) const;

  // Of a key that is not there.
  void Insert(const void* key, ManagedStorage* storage);
  // Of one that is; nothing if it is not.
  void Erase(const void* key);
  size_t size() const;
  // Of all tables that it keeps.
  size_t places() const;

 private:
  struct Place {
    std::atomic<const void*> key = nullptr;
    std::atomic<ManagedStorage*> storage = nullptr;
  };
  class Table;

  void Put(Table& table, const void* key, ManagedStorage* storage);
  void Grow() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  mutable Mutex mutex_;
  std::atomic<const Table*> table_;  // the last of tables_
  std::vector<std::unique_ptr<Table>> tables_ ABSL_GUARDED_BY(mutex_);
  size_t size_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace terrace
