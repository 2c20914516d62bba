#include "libtorch/accelerator/cuda_memory.h"

#include <ATen/Context.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAEvent.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGraphsC10Utils.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "libtorch/guarded.h"

namespace terrace {
namespace {

using c10::cuda::CUDAStream;

struct CudaEvent final : DeviceEvent {
  c10::cuda::CUDAEvent event;
};

c10::cuda::CUDAEvent& EventOf(DeviceEvent& event) {
  return static_cast<CudaEvent&>(event).event;
}

class CudaMemory final : public TorchStreamedDevice {
 public:
  CudaMemory(c10::Device device, int64_t limit_bytes, CUDAStream to_device,
             CUDAStream to_host)
      : device_(device),
        limit_bytes_(limit_bytes),
        to_device_(to_device),
        to_host_(to_host) {}

  c10::Device device() const override { return device_; }

  StreamId CurrentStream() override {
    return c10::cuda::getCurrentCUDAStream(device_.index()).id();
  }
  StreamId CopyStream(CopyDirection direction) const override {
    return StreamOf(direction).id();
  }

  absl::StatusOr<std::shared_ptr<DeviceEvent>> Record(
      StreamId stream) override {
    auto event = std::make_shared<CudaEvent>();
    TERRACE_RETURN_IF_ERROR(Do([&] { event->event.record(Stream(stream)); }));
    return event;
  }
  absl::Status Await(StreamId stream, DeviceEvent& event) override {
    return Do([&] { EventOf(event).block(Stream(stream)); });
  }
  absl::StatusOr<bool> IsDone(DeviceEvent& event) override {
    bool is_done = false;
    TERRACE_RETURN_IF_ERROR(Do([&] { is_done = EventOf(event).query(); }));
    return is_done;
  }
  absl::Status Wait(DeviceEvent& event) override {
    return Do([&] { EventOf(event).synchronize(); });
  }
  absl::Status WaitForAll() override {
    return Do([] { c10::cuda::device_synchronize(); });
  }

  // An invalidated capture is one too, until its stream has ended it. What
  // cannot be told counts as one, so that nothing is moved.
  bool IsCapturing(StreamId stream) override {
    bool is_capturing = true;
    const absl::Status status = Do([&] {
      const c10::cuda::CUDAStreamGuard guard(Stream(stream));
      is_capturing = c10::cuda::currentStreamCaptureStatusMayInitCtx() !=
                     c10::cuda::CaptureStatus::None;
    });
    return !status.ok() || is_capturing;
  }

  absl::StatusOr<std::unique_ptr<DeviceBlock>> Allocate(
      int64_t bytes, StreamId home) override {
    c10::DataPtr data;
    TERRACE_RETURN_IF_ERROR(Do([&] {
      // The allocator's blocks are of the stream that is current.
      const c10::cuda::CUDAStreamGuard guard(Stream(home));
      data = c10::cuda::CUDACachingAllocator::get()->allocate(
          static_cast<size_t>(bytes));
    }));
    return std::make_unique<DataPtrBlock>(std::move(data));
  }

  absl::Status Copy(CopyDirection direction, std::byte* target,
                    const std::byte* source, int64_t bytes) override {
    return Do([&] {
      C10_CUDA_CHECK(cudaMemcpyAsync(target, source, static_cast<size_t>(bytes),
                                     direction == CopyDirection::kToDevice
                                         ? cudaMemcpyHostToDevice
                                         : cudaMemcpyDeviceToHost,
                                     StreamOf(direction)));
    });
  }

  Usage usage() override {
    Usage usage;
    usage.limit_bytes = limit_bytes_;
    // Its lock is recursive: this comes from within it too.
    Do([&] {
      constexpr auto kAll =
          static_cast<size_t>(c10::CachingAllocator::StatType::AGGREGATE);
      const auto stats =
          c10::cuda::CUDACachingAllocator::getDeviceStats(device_.index());
      usage.allocated_bytes = stats.allocated_bytes[kAll].current;
      usage.reserved_bytes = stats.reserved_bytes[kAll].current;
    }).IgnoreError();
    return usage;
  }

  bool Made(const c10::DataPtr& data) const override {
    return data.device() == device_ &&
           data.get_deleter() ==
               c10::cuda::CUDACachingAllocator::get()->raw_deleter();
  }
  absl::Status RecordUse(const c10::DataPtr& data, StreamId stream) override {
    return Do([&] {
      c10::cuda::CUDACachingAllocator::recordStream(data, Stream(stream));
    });
  }

 private:
  // On this device; a capture of another thread's is none of this one's, whose
  // calls touch no stream of it.
  template <typename Work>
  absl::Status Do(const Work& work) const {
    return Guarded(device_, [&] {
      const c10::cuda::CUDAGuard device(device_.index());
      const c10::cuda::CUDAStreamCaptureModeGuard mode(
          cudaStreamCaptureModeRelaxed);
      work();
    });
  }
  CUDAStream Stream(StreamId stream) const {
    return CUDAStream::unpack3(stream, device_.index(), c10::kCUDA);
  }
  const CUDAStream& StreamOf(CopyDirection direction) const {
    return direction == CopyDirection::kToDevice ? to_device_ : to_host_;
  }

  const c10::Device device_;
  const int64_t limit_bytes_;
  const CUDAStream to_device_;
  const CUDAStream to_host_;
};

absl::Status CheckDevice(c10::Device device) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    static_cast<void>(cudaGetLastError());
    return absl::UnavailableError(
        absl::StrCat(device.str(), ": ", cudaGetErrorString(error)));
  }
  if (device.index() >= 0 && device.index() < count) return absl::OkStatus();
  return absl::UnavailableError(
      absl::StrCat(device.str(), ": there are ", count, " devices"));
}

}  // namespace

absl::StatusOr<std::unique_ptr<TorchStreamedDevice>> OpenCudaMemory(
    c10::DeviceIndex index, int64_t limit_bytes) {
  const c10::Device device(c10::kCUDA, index);
  TERRACE_RETURN_IF_ERROR(CheckDevice(device));
  std::unique_ptr<TorchStreamedDevice> memory;
  absl::Status refused;
  TERRACE_RETURN_IF_ERROR(Guarded(device, [&] {
    namespace allocator = c10::cuda::CUDACachingAllocator;
    // The guards of c10 end the process in a program that has not yet used
    // CUDA: what they ask is answered once LibTorch's CUDA library is ready.
    at::globalContext().lazyInitDevice(c10::kCUDA);
    const c10::cuda::CUDAGuard guard(index);
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    C10_CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    const auto total = static_cast<int64_t>(total_bytes);
    if (limit_bytes < 0 || limit_bytes > total) {
      refused = absl::InvalidArgumentError(
          absl::StrCat("a limit of ", limit_bytes, " bytes; ", device.str(),
                       " has ", total));
      return;
    }
    if (limit_bytes > 0) {
      // The allocator multiplies by the total and drops what is behind the
      // point: half a byte more is the limit, and never one byte less.
      const double fraction = (static_cast<double>(limit_bytes) + 0.5) /
                              static_cast<double>(total);
      allocator::setMemoryFraction(std::min(fraction, 1.0), index);
    }
    const int64_t limit = std::llround(allocator::getMemoryFraction(index) *
                                       static_cast<double>(total));
    memory = std::make_unique<CudaMemory>(
        device, limit,
        c10::cuda::getStreamFromPool(/*isHighPriority=*/false, index),
        c10::cuda::getStreamFromPool(/*isHighPriority=*/false, index));
  }));
  if (!refused.ok()) return refused;
  return memory;
}

}  // namespace terrace
