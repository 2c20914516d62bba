// A device whose memory the CPU cannot reach: a GPU. Its addresses are opaque
// here, bytes come and go through pinned host memory. Production has LibTorch's
// devices (runtime/torch/torch_device.h), tests one whose copies happen, at the
// latest, when they are waited for.
//
// Thread-safe; a Stream is one thread at a time. A Device outlives its streams.
// Errors are what the device says, ResourceExhausted where memory is lacking.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace terrace {

// Host memory that a device copies from and to without a detour, aligned to 64
// bytes. May outlive the device that gave it.
using PinnedMemory =
    std::unique_ptr<std::byte[], std::function<void(std::byte*)>>;

class Device {
 public:
  // Copies that run in the order in which they were begun, at the same time as
  // those of other streams. What they read and write must stay until Wait,
  // which must have returned before the stream goes.
  class Stream {
   public:
    virtual ~Stream() = default;

    // Begin a copy of `bytes` > 0 and return. After an error nothing was begun.
    virtual absl::Status CopyToHost(void* target, const void* source,
                                    int64_t bytes) = 0;
    virtual absl::Status CopyToDevice(void* target, const void* source,
                                      int64_t bytes) = 0;
    // Blocks until no copy is under way; the first error of those that were
    // begun since the last Wait, whose targets are then undefined.
    virtual absl::Status Wait() = 0;
  };

  virtual ~Device() = default;

  // "cuda:0".
  virtual std::string name() const = 0;

  virtual absl::StatusOr<PinnedMemory> AllocatePinned(int64_t bytes) = 0;
  virtual absl::StatusOr<std::unique_ptr<Stream>> MakeStream() = 0;

  // Blocks until what the calling thread has queued on the device is done:
  // copies that are begun afterwards see its results.
  virtual absl::Status Synchronize() = 0;
};

}  // namespace terrace
