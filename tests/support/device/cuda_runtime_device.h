// A GPU for a TestRuntime, where there is one.
#pragma once

#include <cstring>
#include <memory>

#include "absl/status/status.h"
#include "kernels/cuda/open_cuda.h"
#include "tests/support/device/runtime_device.h"

namespace terrace {

class CudaRuntimeDevice final : public RuntimeDevice {
 public:
  // Why there is none.
  static absl::Status Supports() { return OpenCuda("cuda:0").status(); }

  void Write(uintptr_t address, absl::Span<const std::byte> bytes) override {
    const PinnedMemory pinned = Pinned(bytes.size());
    std::memcpy(pinned.get(), bytes.data(), bytes.size());
    EXPECT_TRUE(stream_
                    ->CopyToDevice(reinterpret_cast<void*>(address),
                                   pinned.get(),
                                   static_cast<int64_t>(bytes.size()))
                    .ok());
    EXPECT_TRUE(stream_->Wait().ok());
  }
  void Read(uintptr_t address, absl::Span<std::byte> bytes) override {
    const PinnedMemory pinned = Pinned(bytes.size());
    EXPECT_TRUE(stream_
                    ->CopyToHost(pinned.get(),
                                 reinterpret_cast<const void*>(address),
                                 static_cast<int64_t>(bytes.size()))
                    .ok());
    EXPECT_TRUE(stream_->Wait().ok());
    std::memcpy(bytes.data(), pinned.get(), bytes.size());
  }

 protected:
  std::shared_ptr<Device> Open(VirtualClock&) override {
    auto device = *OpenCuda("cuda:0");
    stream_ = *device->MakeStream();
    return device;
  }

 private:
  PinnedMemory Pinned(size_t size) {
    return *device().AllocatePinned(static_cast<int64_t>(size));
  }

  std::unique_ptr<Device::Stream> stream_;
};

}  // namespace terrace
