// The bytes of a storage, here for as long as this lives, without an operation:
// for the library's own copies to and from what the hook manages. Of a storage
// that is not managed they are where they are.
//
//   auto held = HeldBytes::Hold(*storage, {.is_written = true});
//   if (!held.ok()) return held.status();
//   std::memcpy(held->data() + offset, source, size);
//
// A fetch that fails leaves the storage as it was: it may be tried again.
//
// Thread-safe but for one object. The storage must outlive it; what manages it
// closes before or after.
#pragma once

#include <c10/core/StorageImpl.h>

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"

namespace terrace {

class ManagedStorage;

class HeldBytes {
 public:
  struct Use {
    bool is_written = false;
    // It comes in an order of its own, beside operations: what these use next
    // is not learnt from it, and it waits for the room that they have.
    bool is_beside = false;
  };

  // Errors are those of a fetch; FailedPrecondition: it is not managed any more
  // and has no bytes.
  static absl::StatusOr<HeldBytes> Hold(c10::StorageImpl& storage, Use use);

  HeldBytes(HeldBytes&& other) noexcept
      : managed_(std::exchange(other.managed_, nullptr)),
        owner_(std::move(other.owner_)),
        data_(std::exchange(other.data_, nullptr)),
        is_beside_(other.is_beside_) {}
  HeldBytes& operator=(HeldBytes&&) = delete;
  ~HeldBytes();

  std::byte* data() const { return data_; }

 private:
  HeldBytes() = default;

  ManagedStorage* managed_ = nullptr;
  std::shared_ptr<const void> owner_;  // has the window
  std::byte* data_ = nullptr;
  bool is_beside_ = false;
};

}  // namespace terrace
