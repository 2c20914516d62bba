// Tensors on a device whose bytes are there while operations use them, and
// otherwise in memory or below, where a Hook has them as tensors of its own:
// the device's memory is one more tier above that. The model stays as it is, as
// with Hook.
//
//   auto device = DeviceHook::Create(*hook, *memory, CudaRelief(), {});
//   (*device)->Manage(named);
//   for (...) { step(); (*device)->WriteBack(); (*device)->BeginStep(); }
//
// What may not move, and who waits for whom, is stream_uses.h's. What a fetch
// cannot bring throws in the operation, as with Hook; from LibTorch 2.12 on the
// next operation tries it again.
//
// Thread-safe but for two operations that write one tensor. The Hook, the
// memory and the port outlive it; tensors may too.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "base/mutex.h"
#include "base/process.h"
#include "libtorch/accelerator/device_net.h"
#include "libtorch/accelerator/device_storage.h"
#include "libtorch/accelerator/device_window.h"
#include "libtorch/accelerator/relief_port.h"
#include "terrace/torch/hook.h"

namespace terrace {

// A tensor's bytes, on the device for as long as this lives, complete for every
// stream: for a graph's capture, its replays, and kernels that are no
// operations.
class DeviceLease {
 public:
  DeviceLease(at::Tensor tensor, std::shared_ptr<DeviceTensor> held)
      : tensor_(std::move(tensor)), held_(std::move(held)) {}
  ~DeviceLease() { held_->word().Unpin(); }
  DeviceLease(const DeviceLease&) = delete;
  DeviceLease& operator=(const DeviceLease&) = delete;

 private:
  const at::Tensor tensor_;  // keeps the storage alive
  const std::shared_ptr<DeviceTensor> held_;
};

class DeviceHook {
 public:
  // FailedPrecondition: another has the port.
  static absl::StatusOr<std::unique_ptr<DeviceHook>> Create(
      Hook& below, TorchStreamedDevice& memory, ReliefPort& port,
      const DeviceWindow::Options& options);
  // Closes if Close did not. In a forked child, which has nothing of a device,
  // all is left as it is.
  ~DeviceHook();
  DeviceHook(const DeviceHook&) = delete;
  DeviceHook& operator=(const DeviceHook&) = delete;

  // Takes these over, whose blocks are of the calling thread's stream; what is
  // managed already is left as it is. No operation may use them meanwhile.
  // InvalidArgument: no dense tensor of this device with bytes that LibTorch's
  // allocator made. Else what Hook::Manage says of as many bytes in memory.
  // After an error those before it are managed.
  absl::Status Manage(absl::Span<const NamedTensor> tensors);

  // InvalidArgument: not managed here. Else what the fetch says.
  absl::StatusOr<std::unique_ptr<DeviceLease>> MakeLease(
      const at::Tensor& tensor, bool is_written);

  // As the window's.
  int64_t EvictAll();
  absl::Status WriteBack() { return window_->WriteBack(); }
  void BeginStep();
  DeviceWindowStats stats() const { return window_->stats(); }

  // Brings all, beyond the budget; no operation may use them meanwhile. What
  // cannot be brought throws from then on, and the first such error is told.
  // FailedPrecondition, and nothing changes: one is leased or in use, or this
  // thread captures a graph.
  // Idempotent.
  absl::Status Close();

 private:
  struct Entry {
    std::shared_ptr<DeviceTensor> tensor;
    const void* key;
  };

  DeviceHook(Hook& below, TorchStreamedDevice& memory, ReliefPort& port,
             const DeviceWindow::Options& options);

  absl::Status Add(const NamedTensor& tensor);
  // Those whose storages are no more.
  void Sweep() ABSL_LOCKS_EXCLUDED(removing_);
  void RemoveGone() ABSL_EXCLUSIVE_LOCKS_REQUIRED(removing_);
  std::vector<Entry> All() const;
  void Erase(const Entry& entry);

  const Process process_;
  Hook& below_;
  TorchStreamedDevice& memory_;
  ReliefPort& port_;
  std::unique_ptr<DeviceWindow> window_;  // never ends in a forked child
  Mutex removing_;                        // before mutex_: each is removed once
  mutable Mutex mutex_;
  absl::flat_hash_map<const void*, Entry> entries_ ABSL_GUARDED_BY(mutex_);
  bool is_closed_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace terrace
