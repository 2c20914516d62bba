// Copies between a device and memory that are under way: the bytes in memory
// are held until the device has done with them, and no longer than until the
// next look. Few at a time, since what they hold keeps others from the room.
//
// Thread-safe. Not for what holds the allocator's lock: the end of what is held
// may wait.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "libtorch/accelerator/streamed_device.h"

namespace terrace {

class DeviceCopies {
 public:
  explicit DeviceCopies(StreamedDevice& memory) : memory_(memory) {}

  // Of bytes that were written to memory, the bytes are there for others once
  // the event is.
  void Add(std::shared_ptr<DeviceEvent> ended, std::unique_ptr<HostBytes> held);
  // Lets go what has ended, and waits for the oldest beyond so many. The first
  // error; what it was of is let go all the same. Nothing while the calling
  // thread captures a graph.
  absl::Status Settle(size_t most);
  size_t count() const;

 private:
  struct Copy {
    std::shared_ptr<DeviceEvent> ended;
    std::unique_ptr<HostBytes> held;
  };

  StreamedDevice& memory_;
  mutable Mutex mutex_;
  std::vector<Copy> copies_ ABSL_GUARDED_BY(mutex_);  // the oldest first
};

}  // namespace terrace
