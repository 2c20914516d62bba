// A HeldBytes keeps the bytes of a storage in memory for as long as it lives,
// without an operation. The library's own copies to and from managed storages
// use it. The bytes of a storage that is not managed stay where they are.
//
//   auto held = HeldBytes::Hold(*storage, {.is_written = true});
//   if (!held.ok()) return held.status();
//   std::memcpy(held->data() + offset, source, size);
//
// A fetch that fails leaves the storage as it was, and the caller may try
// again.
//
// Threads may hold bytes at any time. An object ends on the thread that made
// it, as a fetch by that thread waits with what it holds. The storage must
// outlive the object; the hook that manages the storage may close before or
// after.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/StorageImpl.h>

#include <cstddef>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace {

class ManagedStorage;

class HeldBytes {
 public:
  struct Use {
    bool is_written = false;
    // The use comes beside operations, in an order of its own: the window does
    // not learn from it what operations use next.
    bool is_beside = false;
  };

  // Errors are those of a fetch. The call fails with FailedPrecondition when
  // the storage is not managed any more and has no bytes, and with
  // ResourceExhausted when a lazy copy that is written finds no memory for
  // bytes of its own.
  static absl::StatusOr<HeldBytes> Hold(c10::StorageImpl& storage, Use use);

  HeldBytes(HeldBytes&& other) noexcept
      : managed_(std::exchange(other.managed_, nullptr)),
        owner_(std::move(other.owner_)),
        data_(std::exchange(other.data_, nullptr)),
        device_(other.device_),
        is_beside_(other.is_beside_) {}
  HeldBytes& operator=(HeldBytes&&) = delete;
  ~HeldBytes();

  // On a device an address of its, which CopyTo and CopyFrom take in any case.
  std::byte* data() const { return data_; }

  // Holding bytes of a device waits for what it was given with them. Copies
  // bytes from or to `offset`, and waits for that.
  absl::Status CopyTo(void* target, int64_t offset, int64_t bytes) const;
  absl::Status CopyFrom(const void* source, int64_t offset,
                        int64_t bytes) const;

 private:
  HeldBytes() = default;

  ManagedStorage* managed_ = nullptr;
  std::shared_ptr<const void> owner_;  // keeps the window alive
  std::byte* data_ = nullptr;
  c10::Device device_ = c10::Device(c10::kCPU);
  bool is_beside_ = false;
};

}  // namespace terrace
