// How much of a device's memory its tensors may have, learned from what the
// others (activations, gradients, temporaries) had: those are allocated by
// LibTorch, which asks nobody and tells no size. Most of the room is made
// before it is needed: by the step before. What is left is relief, when a cache
// miss would come near the limit.
//
// Thread-safe, without a lock: it is asked under the allocator's.
#pragma once

#include <atomic>
#include <cstdint>

#include "libtorch/accelerator/streamed_device.h"

namespace terrace {

class DeviceRoom {
 public:
  // `least_wanted_bytes`: what a miss asks for at least.
  DeviceRoom(StreamedDevice& memory, int64_t budget_bytes,
             int64_t least_wanted_bytes)
      : memory_(memory),
        budget_bytes_(budget_bytes),
        most_wanted_bytes_(least_wanted_bytes) {}

  // For tensors, of which `held_bytes` are there now.
  int64_t TensorBytes(int64_t held_bytes);
  // What others had at most in this step is left free in the next.
  void BeginStep();
  // At a miss of the allocator's cache: another as large as any before it stays
  // below the limit.
  bool HasRoomForMiss();
  // As large as any miss was: reserved bytes grow by it.
  int64_t most_wanted_bytes() const { return most_wanted_bytes_.load(); }

 private:
  StreamedDevice& memory_;
  const int64_t budget_bytes_;
  std::atomic<int64_t> others_before_bytes_ = 0;
  std::atomic<int64_t> others_now_bytes_ = 0;
  std::atomic<int64_t> last_reserved_bytes_ = INT64_MAX;  // at a miss
  std::atomic<int64_t> most_wanted_bytes_;
};

}  // namespace terrace
