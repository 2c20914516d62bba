// A device whose memory the CPU cannot reach: a GPU. Its addresses are opaque
// here, bytes come and go through pinned host memory. Production has LibTorch's
// devices (libtorch/torch_device.h), which own no memory here, and CUDA's
// (kernels/cuda/cuda_device.h), which tiers are made of. Tests have one whose
// copies happen, at the latest, when they are waited for, one in virtual time
// and one of threads (tests/support).
//
// Thread-safe; a Stream is one thread at a time. A Device outlives its streams
// and its memory. Errors are what the device says, ResourceExhausted where
// memory is lacking.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace terrace {

// Host memory that a device copies from and to without a detour, aligned to 64
// bytes. May outlive the device that gave it.
using PinnedMemory =
    std::unique_ptr<std::byte[], std::function<void(std::byte*)>>;

// Memory of a device, by its address there.
using DeviceMemory = std::unique_ptr<void, std::function<void(void*)>>;

// A range of host memory, by its address, that a device knows until this goes.
// May outlive the device.
using HostRegistration = std::unique_ptr<void, std::function<void(void*)>>;

// A mapping of our own and what a device knows of it: the mapping cannot go
// before its registrations have.
class PinnedMapping {
 public:
  PinnedMapping() = default;
  PinnedMapping(std::shared_ptr<const void> mapping,
                absl::Span<std::byte> bytes)
      : mapping_(std::move(mapping)), bytes_(bytes) {}
  PinnedMapping(PinnedMapping&& other) noexcept { Swap(other); }
  PinnedMapping& operator=(PinnedMapping&& other) noexcept {
    PinnedMapping taken(std::move(other));
    Swap(taken);
    return *this;
  }
  // The registrations first, the last one first.
  ~PinnedMapping() {
    while (!registrations_.empty()) registrations_.pop_back();
  }

  void Add(HostRegistration registration) {
    registrations_.push_back(std::move(registration));
  }
  // Empty: nothing is pinned.
  absl::Span<std::byte> bytes() const { return bytes_; }
  int64_t pieces() const { return static_cast<int64_t>(registrations_.size()); }

 private:
  void Swap(PinnedMapping& other) {
    std::swap(mapping_, other.mapping_);
    std::swap(bytes_, other.bytes_);
    std::swap(registrations_, other.registrations_);
  }

  std::shared_ptr<const void> mapping_;
  absl::Span<std::byte> bytes_;
  std::vector<HostRegistration> registrations_;
};

class Device {
 public:
  // Copies that run, and end, in the order in which they were begun, at the
  // same time as those of other streams. What they read and write must stay
  // until they have ended, as Poll or Wait tells, and all must have before the
  // stream goes; a stream whose copies do not end is left behind.
  class Stream {
   public:
    virtual ~Stream() = default;

    // Begin a copy of `bytes` > 0 and return. After an error nothing was begun.
    virtual absl::Status CopyToHost(void* target, const void* source,
                                    int64_t bytes) = 0;
    virtual absl::Status CopyToDevice(void* target, const void* source,
                                      int64_t bytes) = 0;

    // Appends how each copy ended that neither Poll nor Wait has told of, in
    // the order in which they were begun; the target of one that failed is
    // undefined. Never blocks.
    virtual void Poll(std::vector<absl::Status>* ended) = 0;
    // Calls `run` once, on any thread, after all copies that were begun before
    // have ended. It must neither block nor use the device. After an error it
    // is never called (Unimplemented: this device calls nothing), nor by a
    // device that has failed for good: who waits looks now and then.
    virtual absl::Status OnDone(std::function<void()> run);
    // Blocks until no copy is under way; the first error of those that were
    // not told of.
    virtual absl::Status Wait() = 0;
  };

  // A driver's lock is held for a piece: more at once would hold up copies.
  static constexpr int64_t kPinPieceBytes = int64_t{1} << 30;

  virtual ~Device() = default;

  // "cuda:0".
  virtual std::string name() const = 0;
  // OK until the device has failed for good; from then on Unavailable, with
  // the device's code, and so is whatever is asked of it.
  virtual absl::Status Health() const { return absl::OkStatus(); }

  // Memory that stays where it is. Unimplemented: none is had of this device.
  virtual absl::StatusOr<DeviceMemory> Allocate(int64_t bytes);
  virtual absl::StatusOr<PinnedMemory> AllocatePinned(int64_t bytes) = 0;
  // Pins `bytes` of a mapping of our own, which lives as long as the pin at
  // least, in pieces of at most `piece_bytes`. All of it or, after an error,
  // nothing.
  absl::StatusOr<PinnedMapping> Pin(std::shared_ptr<const void> mapping,
                                    absl::Span<std::byte> bytes,
                                    int64_t piece_bytes = kPinPieceBytes);
  virtual absl::StatusOr<std::unique_ptr<Stream>> MakeStream() = 0;

  // Blocks until what the calling thread has queued on the device is done:
  // copies that are begun afterwards see its results.
  virtual absl::Status Synchronize() = 0;

 private:
  // Unimplemented: this device registers no memory.
  virtual absl::StatusOr<HostRegistration> Register(
      absl::Span<std::byte> piece);
};

}  // namespace terrace
