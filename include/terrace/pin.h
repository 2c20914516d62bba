// A Pin promises that a tensor's bytes stay where they are.
//
// Owned by the caller that took it from a RequestQueue; move-only; may be
// handed to and released on another thread (one thread at a time). A Pin taken
// for kUpdate or kOverwrite is dirty by type: releasing it publishes what was
// written. A Pin may outlive its queue; its Runtime only where Close said so:
// the bytes stay, and releasing it then does nothing. In a forked child it does
// nothing either.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/types/span.h"
#include "terrace/tensor.h"

namespace terrace {

// How a pin ends.
enum class PinEnd : uint8_t {
  kPublish,    // contents are as written (read pins: unchanged)
  kUnchanged,  // as before the pin: the writer promises it wrote nothing
  kDiscard,    // undefined: the lower copy, if current, is the truth; if none
               // is, the tensor is DataLoss
};

// Where releases go: to the runtime. Thread-safe; never blocks.
class PinOwner {
 public:
  virtual ~PinOwner() = default;
  virtual void EndPin(uint64_t token, PinEnd end) = 0;
};

class Pin {
 public:
  Pin() = default;
  // For implementations of RequestQueue.
  Pin(std::shared_ptr<PinOwner> owner, uint64_t token, TensorId tensor,
      absl::Span<std::byte> data)
      : owner_(std::move(owner)), token_(token), tensor_(tensor), data_(data) {}
  // Of bytes that the CPU cannot address.
  Pin(std::shared_ptr<PinOwner> owner, uint64_t token, TensorId tensor,
      uintptr_t address)
      : owner_(std::move(owner)),
        token_(token),
        tensor_(tensor),
        address_(address) {}
  ~Pin() { Release(); }
  Pin(Pin&& other) noexcept { *this = std::move(other); }
  Pin& operator=(Pin&& other) noexcept {
    if (this != &other) {
      Release();
      owner_ = std::exchange(other.owner_, nullptr);
      token_ = other.token_;
      tensor_ = other.tensor_;
      data_ = std::exchange(other.data_, {});
      address_ = std::exchange(other.address_, 0);
    }
    return *this;
  }

  bool valid() const { return owner_ != nullptr; }
  TensorId tensor() const { return tensor_; }
  // Names the pin to its queue, also after its end.
  uint64_t token() const { return token_; }
  // The payload, exactly TensorSpec::size_bytes long, 4 KiB aligned. Valid
  // until the release. Empty where the CPU cannot address them: on a device.
  absl::Span<std::byte> data() const { return data_; }
  // Of the payload, wherever it is: as its device has it, or the CPU.
  uintptr_t address() const {
    return data_.empty() ? address_ : reinterpret_cast<uintptr_t>(data_.data());
  }

  // Idempotent; the destructor calls Release().
  void Release() { End(PinEnd::kPublish); }
  void ReleaseUnchanged() { End(PinEnd::kUnchanged); }
  void Discard() { End(PinEnd::kDiscard); }

 private:
  void End(PinEnd end) {
    if (owner_ == nullptr) return;
    data_ = {};
    address_ = 0;
    // Shared: a pin may be released after its runtime was leaked by a Close
    // that timed out, and must still find the mailbox it reports to.
    std::shared_ptr<PinOwner> owner = std::exchange(owner_, nullptr);
    owner->EndPin(token_, end);
  }

  std::shared_ptr<PinOwner> owner_;
  uint64_t token_ = 0;
  TensorId tensor_;
  absl::Span<std::byte> data_;
  uintptr_t address_ = 0;  // on a device
};

}  // namespace terrace
