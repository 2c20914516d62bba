// Device memory and pinned memory, as LibTorch's allocators.
#include "tests/support/accelerator/torch/accelerator_allocator.h"

#include <c10/core/CachingDeviceAllocator.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <array>
#include <atomic>

#include "tests/support/accelerator/torch/accelerator.h"
#include "tests/support/accelerator/torch/tensor_copies.h"

namespace terrace {
namespace {

using c10::CachingAllocator::Stat;

void FreeOnDevice(void* address) {
  if (AcceleratorMemory* const memory = TheAccelerator().MemoryAt(address)) {
    memory->Free(reinterpret_cast<uintptr_t>(address));
  }
}

void FreePinned(void* address) {
  TheAccelerator().pinned().Free(reinterpret_cast<uintptr_t>(address));
}

[[noreturn]] void ThrowOutOfMemory(c10::DeviceIndex device, size_t bytes,
                                   const AcceleratorMemory& memory) {
  TORCH_CHECK_WITH(OutOfMemoryError, false,
                   "testdev:", static_cast<int>(device),
                   " is out of memory: tried to "
                   "allocate ",
                   bytes, " bytes, ", memory.stats().allocated_bytes, " of ",
                   memory.limit_bytes(), " are allocated");
}

class Allocator final : public c10::DeviceAllocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    const c10::DeviceIndex device = CurrentAcceleratorDevice();
    if (bytes == 0) {
      return {nullptr, nullptr, &FreeOnDevice, AcceleratorDevice(device)};
    }
    Accelerator& accelerator = TheAccelerator();
    AcceleratorMemory& memory = accelerator.memory(device);
    const auto found = memory.Allocate(bytes, accelerator.Current(device));
    if (!found) {
      ++refused_[static_cast<size_t>(device)];
      ThrowOutOfMemory(device, bytes, memory);
    }
    auto* const address = reinterpret_cast<void*>(*found);
    return {address, address, &FreeOnDevice, AcceleratorDevice(device)};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &FreeOnDevice; }
  void copy_data(void* target, const void* source,
                 size_t bytes) const override {
    CopyDeviceBytes(target, source, bytes);
  }

  bool initialized() override { return true; }
  void emptyCache(c10::MempoolId_t) override {
    for (c10::DeviceIndex at = 0; at < Accelerator::kDevices; ++at) {
      TheAccelerator().memory(at).EmptyCache();
    }
  }
  void recordStream(const c10::DataPtr& data, c10::Stream stream) override {
    c10::impl::getDeviceGuardImpl(c10::DeviceType::PrivateUse1)
        ->recordDataPtrOnStream(data, stream);
  }
  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(
      c10::DeviceIndex device) override {
    const BlockPoolStats own = TheAccelerator().memory(device).stats();
    c10::CachingDeviceAllocator::DeviceStats stats;
    Stat& allocated = stats.allocated_bytes[0];
    allocated.current = own.allocated_bytes;
    allocated.peak = own.peak_bytes;
    stats.allocation[0].current = own.blocks;
    stats.reserved_bytes[0].current = own.allocated_bytes + own.cached_bytes;
    stats.num_ooms = refused_[static_cast<size_t>(device)];
    return stats;
  }
  void resetAccumulatedStats(c10::DeviceIndex device) override {
    refused_[static_cast<size_t>(device)] = 0;
  }
  void resetPeakStats(c10::DeviceIndex device) override {
    TheAccelerator().memory(device).ResetPeak();
  }
  std::pair<size_t, size_t> getMemoryInfo(c10::DeviceIndex device) override {
    const AcceleratorMemory& memory = TheAccelerator().memory(device);
    const size_t limit = memory.limit_bytes();
    return {limit - static_cast<size_t>(memory.stats().allocated_bytes), limit};
  }

 private:
  std::array<std::atomic<int64_t>, Accelerator::kDevices> refused_{};
};

class PinnedAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(size_t bytes) override {
    if (bytes == 0) {
      return {nullptr, nullptr, &FreePinned, c10::DeviceType::CPU};
    }
    const auto found = TheAccelerator().pinned().Allocate(bytes);
    TORCH_CHECK_WITH(OutOfMemoryError, found.has_value(),
                     "testdev: no pinned memory for ", bytes, " bytes");
    auto* const address = reinterpret_cast<void*>(*found);
    return {address, address, &FreePinned, c10::DeviceType::CPU};
  }
  c10::DeleterFnPtr raw_deleter() const override { return &FreePinned; }
  void copy_data(void* target, const void* source,
                 size_t bytes) const override {
    default_copy_data(target, source, bytes);
  }
};

Allocator the_allocator;
const c10::AllocatorRegisterer<c10::DeviceType::PrivateUse1> registered_memory(
    &the_allocator);

}  // namespace

c10::DeviceAllocator& AcceleratorAllocator() { return the_allocator; }

c10::Allocator& AcceleratorPinnedAllocator() {
  static PinnedAllocator allocator;
  return allocator;
}

}  // namespace terrace
