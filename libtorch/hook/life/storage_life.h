// A storage's time with a hook: from when it enters until it has gone. What a
// ByteWindow moves, with the address by which operations look for it. Knows no
// LibTorch: the subclass has the storage.
//
// Made as a shared_ptr. It lives at least as long as its storage, since a
// thread that has just found it may be about to pin it (StorageRegistry::Keep).
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

  // Of the storage; that of no other while this lives.
  const void* address() const { return address_; }
  ByteWindow& window() const { return window_; }
  // True in a forked child of the process in which it was made: that has none
  // of its bytes, and any lock of it may be held for ever.
  bool is_parents() const { return !process_.IsCurrent(); }
  // What has the window, for what goes on with that after a pin.
  virtual std::shared_ptr<const void> keeper() const = 0;
  // Else each use of it throws, wherever its bytes are.
  virtual bool needs_bytes() const { return true; }
  // No tensor has the storage any more.
  virtual bool expired() const = 0;
  // It has left with its bytes. Where the storage cannot be used again, its
  // tensors have another one from then on.
  virtual void Renew() {}
  // Where the bytes are now: for the thread that fills it, or has it pinned.
  virtual std::byte* data() const = 0;

 private:
  const Process process_;
  const void* const address_;
  ByteWindow& window_;
};

// Where operations look for storages; one for all hooks. Thread-safe.
class StorageIndex {
 public:
  virtual ~StorageIndex() = default;
  // False, and nothing changes: another hook has it.
  virtual bool Insert(StorageLife& storage) = 0;
  // Found no more, and kept for as long as its storage lives. What is kept no
  // longer is the caller's, who lets go of it without a lock.
  using Ended = std::vector<std::shared_ptr<StorageLife>>;
  virtual Ended Erase(std::shared_ptr<StorageLife> storage) = 0;
};

}  // namespace terrace
