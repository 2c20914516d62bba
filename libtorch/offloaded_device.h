// Parameters that are offloaded, as a device: a step copies them out chunk by
// chunk, updates them, and copies them back, each while its bytes are held, and
// marks them as written. So no more than one of them is held in memory for the
// step at a time.
//
// Its addresses for them are beyond those that there are, and are the same ones
// as long as the storage is. Gradients have their own.
//
// It refers to storages alone: no tensor that Python has seen ends with it, and
// no version counter is told of what it writes.
//
// Place, Point, Forget and Prune are for the thread that begins and ends steps;
// the rest is thread-safe. Errors: those of HeldBytes.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "base/device.h"
#include "base/mutex.h"
#include "libtorch/hook/held_bytes.h"
#include "terrace/optimizer.h"

namespace terrace {

class OffloadedDevice final : public Device {
 public:
  OffloadedDevice();

  // Of a contiguous tensor with elements, whose storage is referred to until
  // Drop() or Forget().
  void* Place(const at::Tensor& tensor);
  // Whether a contiguous parameter with elements or its gradient, which may be
  // undefined, is offloaded: then a step finds both here, and `data` says
  // where.
  bool Point(const at::Tensor& parameter, const at::Tensor& gradient,
             ParameterData& data);
  // What was placed there, once more or for the last time, is not copied any
  // more for that, and not now. Its storage must not end with this where Python
  // has seen it. What it has not placed: nothing.
  void Drop(const void* address);
  void Forget();
  // A step is complete: storages that are gone get no addresses any more, once
  // there are many of them. Not while tensors are referred to.
  void Prune();

  // A step has ended: Forget, and Prune where it is complete.
  void EndStep(bool is_complete) {
    Forget();
    SetBeside(false);
    if (is_complete) Prune();
  }

  // Whether steps go on beside operations from here on (HeldBytes::Use).
  void SetBeside(bool is_beside);

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
  struct Placed {
    c10::Storage storage;
    int64_t offset = 0;  // in bytes, in the storage
    int64_t bytes = 0;
    int times = 0;  // placed, and not dropped
  };

  class Turn;
  // Where `bytes` from an address on are, in a storage. Internal: none of ours.
  struct Found {
    c10::Storage storage;
    int64_t offset = 0;
    bool is_beside = false;
  };
  absl::StatusOr<Found> Find(const void* address, int64_t bytes)
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Calls `copy` with them, held, and their offset. Others wait for that, and
  // for what it reads; no lock is held meanwhile.
  absl::Status Copy(
      const void* address, int64_t bytes, bool is_written,
      absl::FunctionRef<absl::Status(const HeldBytes&, int64_t)> copy)
      ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status CopyOut(void* target, const void* source, int64_t bytes);
  absl::Status CopyBack(void* target, const void* source, int64_t bytes);

  Mutex mutex_;
  CondVar copied_;
  // One parameter at a time is in use.
  bool is_copying_ ABSL_GUARDED_BY(mutex_) = false;
  std::map<uintptr_t, Placed> placed_ ABSL_GUARDED_BY(mutex_);
  std::map<const void*, Extent> storages_ ABSL_GUARDED_BY(mutex_);
  uintptr_t next_ ABSL_GUARDED_BY(mutex_);
  bool is_beside_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace terrace
