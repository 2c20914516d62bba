// The tests' accelerator, as LibTorch's PrivateUse1 device `testdev`: devices
// in the CPU's memory whose streams are threads, late and checked
// (device_streams.h). Loading the library registers it: a program links it, and
// Python loads it by torch.ops.load_library.
//
// Operators with a CPU kernel are given to the current stream, and run there by
// that kernel, one thread each. Those whose results depend on data wait, as on
// CUDA.
//
// One a process, which is never destroyed: streams end as the process does, and
// what they had not begun by then never is. Thread-safe; the current device and
// its streams are a thread's own.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/accelerator/accelerator_memory.h"
#include "tests/support/accelerator/device_streams.h"
#include "tests/support/accelerator/pinned_pages.h"

namespace terrace {

class Accelerator {
 public:
  static constexpr c10::DeviceIndex kDevices = 2;
  static constexpr size_t kUsualLimitBytes = size_t{4} << 30;

  Accelerator();
  Accelerator(const Accelerator&) = delete;
  Accelerator& operator=(const Accelerator&) = delete;

  DeviceStreams& streams() { return streams_; }
  PinnedPages& pinned() { return pinned_; }
  AcceleratorMemory& memory(c10::DeviceIndex device) {
    return *memories_.at(static_cast<size_t>(device));
  }
  // Null: the address is no device's.
  AcceleratorMemory* MemoryAt(const void* address);
  // Where streams have what is at an address of a device.
  std::byte* Twin(const void* address);

  // One of the device's, in turn.
  c10::Stream NextStream(c10::DeviceIndex device);
  AcceleratorStream Of(const c10::Stream& stream) const;
  AcceleratorStream Current(c10::DeviceIndex device) const;

  // What the CPU has waited for, it may touch.
  void Wait(const StreamMark& mark);
  bool IsOver(const StreamMark& mark);
  void WaitForStream(AcceleratorStream stream);
  void WaitForDevice(c10::DeviceIndex device);

  // Of all that was found since they were taken, the first hundred.
  std::vector<std::string> TakeReports();

  void LockForFork();
  void UnlockAfterFork(bool is_child);

 private:
  static constexpr size_t kStreamsOfDevice = 9;  // the usual one, and others

  DeviceStreams streams_;
  std::vector<std::unique_ptr<AcceleratorMemory>> memories_;
  PinnedPages pinned_;
  std::vector<std::vector<AcceleratorStream>> ids_;  // by device
  std::mutex turn_mutex_;
  size_t turn_ = 0;
};

Accelerator& TheAccelerator();

c10::Device AcceleratorDevice(c10::DeviceIndex index);
// The calling thread's.
c10::DeviceIndex CurrentAcceleratorDevice();
c10::Stream CurrentAcceleratorStream(c10::DeviceIndex device);

}  // namespace terrace
