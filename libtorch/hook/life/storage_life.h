// A StorageLife is a storage's time with a hook, from when the storage enters
// until it has gone: a tensor that a ByteWindow moves, with the address by
// which operations look for it. The class knows no LibTorch: the subclass has
// the storage.
//
// Objects are made as a shared_ptr. An object lives at least as long as its
// storage, since a thread that has just found it may be about to pin it
// (StorageRegistry::Keep).
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/process.h"
#include "libtorch/hook/window/window_tensor.h"

namespace terrace {

class ByteWindow;

class StorageLife : public WindowTensor,
                    public std::enable_shared_from_this<StorageLife> {
 public:
  StorageLife(std::string name, const void* address, int64_t size_bytes,
              ByteWindow& window)
      : WindowTensor(std::move(name), size_bytes),
        address_(address),
        window_(window) {
    word().Enter();
  }

  // The storage's address, which no other storage has while this object lives.
  const void* address() const { return address_; }
  ByteWindow& window() const { return window_; }
  // Returns true in a forked child of the process in which the object was made:
  // the child has none of its bytes, and any lock of it may be held for ever.
  bool is_parents() const { return !process_.IsCurrent(); }
  // Returns the owner of the window, for a caller that goes on with the window
  // after a pin has ended.
  virtual std::shared_ptr<const void> keeper() const = 0;
  // Returns false when each use of the storage throws, wherever its bytes are.
  virtual bool needs_bytes() const { return true; }
  // Returns true when no tensor has the storage any more.
  virtual bool expired() const = 0;
  // Returns where the bytes are now, to the thread that fills the storage or
  // has it pinned.
  virtual std::byte* data() const = 0;

 private:
  const Process process_;
  const void* const address_;
  ByteWindow& window_;
};

// Operations look for storages in the index, which is one for all hooks. It is
// thread-safe.
class StorageIndex {
 public:
  virtual ~StorageIndex() = default;
  // Returns false, and changes nothing, when another hook has the storage.
  virtual bool Insert(StorageLife& storage) = 0;
  // The storage is found no more, and the index keeps it for as long as its
  // LibTorch storage lives. Erase returns the storages that are kept no longer:
  // they are the caller's, who lets go of them without a lock.
  using Ended = std::vector<std::shared_ptr<StorageLife>>;
  virtual Ended Erase(std::shared_ptr<StorageLife> storage) = 0;
};

}  // namespace terrace
