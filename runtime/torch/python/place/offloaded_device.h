// Parameters that are offloaded, as a device: a step copies them out chunk by
// chunk, updates them, and copies them back, each by an operation of LibTorch,
// which has the bytes brought, and marks them as written. So no more than one
// of them is held in memory for the step at a time.
//
// Its addresses for them are beyond those that there are, and are the same ones
// as long as the storage is. Gradients have their own.
//
// Place and Forget are for the thread that begins and ends steps; the rest is
// thread-safe. Errors: Internal, with what the operation threw.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "runtime/base/device.h"
#include "runtime/base/mutex.h"

namespace terrace {

class OffloadedDevice final : public Device {
 public:
  // Of a contiguous tensor with elements, which is referred to until Forget().
  void* Place(const at::Tensor& tensor);
  void Forget();
  // A step is complete: storages that are gone get no addresses any more, once
  // there are many of them. Not while tensors are referred to.
  void Prune();

  std::string name() const override { return "the offloaded parameters"; }
  absl::StatusOr<PinnedMemory> AllocatePinned(int64_t bytes) override;
  absl::StatusOr<std::unique_ptr<Stream>> MakeStream() override;
  absl::Status Synchronize() override { return absl::OkStatus(); }

 private:
  class CopyStream;
  struct Extent {
    uintptr_t start = 0;
    size_t bytes = 0;
  };

  // `bytes` from an address on, as bytes; undefined: none of ours.
  at::Tensor Find(const void* address, int64_t bytes)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  // Held while bytes are copied: one parameter at a time is in use.
  Mutex mutex_;
  std::map<uintptr_t, at::Tensor> tensors_ ABSL_GUARDED_BY(mutex_);
  std::map<const void*, Extent> storages_ ABSL_GUARDED_BY(mutex_);
  uintptr_t next_ ABSL_GUARDED_BY(mutex_) = uintptr_t{1} << 62;
};

}  // namespace terrace
