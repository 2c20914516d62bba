// Sees every operation that LibTorch dispatches and that takes what a device
// window moves: brings its tensors, keeps them until its end, and tells the
// window which stream uses them, what is written, and what a collective has.
// Beside the net of tensors in memory (hook/operation_net.h), which it leaves
// alone: of tensors of another type of device it asks nothing and takes no
// lock.
//
// While nothing is managed, operations are not seen and cost nothing. A forked
// child has none of its parent's, as it does not use their device.
#pragma once

#include <c10/core/DeviceType.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "base/mutex.h"
#include "libtorch/accelerator/device_tensor.h"
#include "libtorch/accelerator/device_window.h"

namespace terrace {

// Thread-safe.
class DeviceNet {
 public:
  struct Managed {
    std::shared_ptr<DeviceTensor> tensor;
    DeviceWindow* window;  // lives while the tensor is pinned
  };

  // Lives for ever.
  static DeviceNet& Get();

  // Of a storage's address, which stands for it while it is here.
  void Insert(const void* key, c10::DeviceType type, Managed managed);
  // None finds it from here on; who found it before has it pinned.
  void Erase(const void* key);

  // Not managed: nothing. Else it is pinned.
  std::optional<Managed> Pin(const void* key, c10::DeviceType type);

 private:
  DeviceNet() = default;

  void Listen() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void StopIfIdle() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void BeforeFork();
  void AfterFork();
  void AfterForkInChild();

  std::atomic<uint64_t> types_ = 0;  // a bit each, of those ever managed
  Mutex mutex_;
  absl::flat_hash_map<const void*, Managed> managed_ ABSL_GUARDED_BY(mutex_);
  std::optional<uint64_t> handle_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
