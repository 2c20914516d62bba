// LibTorch's CUDA beyond its device-independent interfaces, by the module that
// knows it, libterrace_torch_cuda-2.11.so. The module is loaded when it is
// first asked for, where LibTorch's CUDA is in the process and has a device; it
// stays for good. It is looked for as CUDA's own is (kernels/cuda/open_cuda.h).
//
//   absl::StatusOr<TorchCuda> cuda = TorchCuda::Open();
//   if (cuda.ok()) cuda->relief().Attach(&source);
//
// Thread-safe, but for this: LibTorch reads the list of what its allocator
// calls without a lock, so that no other thread allocates of a device during
// the first Open. What fails is Unavailable, or of memory ResourceExhausted,
// with the device and CUDA's code.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "libtorch/accelerator/relief_port.h"
#include "libtorch/accelerator/streamed_device.h"
#include "libtorch/accelerator/torch_cuda_calls.h"

namespace terrace {

// The table of the module in that file, or of the one that is found. A module
// loads without a device, and without a driver.
absl::StatusOr<const TerraceTorchCudaCalls*> LoadTorchCuda(
    const std::string& file);
absl::StatusOr<const TerraceTorchCudaCalls*> LoadTorchCuda();

class TorchCuda {
 public:
  struct Memory {
    int64_t free_bytes;
    int64_t total_bytes;
  };

  // One recording of a stream, which a thread can wait for asleep.
  class SleepingEvent {
   public:
    SleepingEvent(SleepingEvent&& other) noexcept;
    SleepingEvent& operator=(SleepingEvent&& other) = delete;
    ~SleepingEvent();
    // Until the stream has done what it had been given.
    absl::Status Wait();

   private:
    friend class TorchCuda;
    SleepingEvent(const TerraceTorchCudaCalls& calls, int device, void* event)
        : calls_(calls), device_(device), event_(event) {}

    const TerraceTorchCudaCalls& calls_;
    const int device_;
    void* event_;
  };

  // Unavailable, in one sentence: LibTorch has no CUDA in this process, or no
  // device of it; the module is not there, is of another version, or serves
  // somebody else.
  static absl::StatusOr<TorchCuda> Open();
  // The table is for ever.
  explicit TorchCuda(const TerraceTorchCudaCalls& calls) : calls_(&calls) {}

  // Where LibTorch's allocator asks for CUDA memory, of any device: the one
  // port of the process. It is reached from the first Open on.
  static ReliefPort& relief();

  absl::StatusOr<bool> IsCapturing(int device, StreamId stream) const;
  absl::StatusOr<SleepingEvent> Record(int device, StreamId stream) const;
  // Every device copies from and to the range without a detour until
  // UnregisterHost is called with its begin.
  absl::Status RegisterHost(int device, absl::Span<std::byte> range) const;
  absl::Status UnregisterHost(int device, std::byte* begin) const;
  absl::StatusOr<Memory> MemoryOf(int device) const;

 private:
  const TerraceTorchCudaCalls* calls_;
};

}  // namespace terrace
