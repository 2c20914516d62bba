// What knows LibTorch's CUDA: a module of its own, with CUDA's calls in it. It
// has what LibTorch's allocator calls when its cache misses, from when it is
// loaded on.
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <atomic>
#include <exception>
#include <memory>

#include "kernels/cuda/current_device.h"
#include "libtorch/accelerator/torch_cuda_calls.h"

namespace {

using terrace::OnDevice;

using Relieve = int (*)();
constinit std::atomic<Relieve> asked_relief = nullptr;

// LibTorch makes one anew for each call, under the allocator's lock.
class TerraceRelief final : public c10::FreeMemoryCallback {
 public:
  bool Execute() override {
    const Relieve relieve = asked_relief.load();
    return relieve != nullptr && relieve() != 0;
  }
};

int SetRelief(Relieve relieve) {
  Relieve before = nullptr;
  if (relieve == nullptr) asked_relief.store(nullptr);
  return relieve == nullptr ||
         asked_relief.compare_exchange_strong(before, relieve) ||
         before == relieve;
}

// `call` with the stream as CUDA has it. The default one needs nothing of
// LibTorch, whose guards end a program where its CUDA is not readied yet. All
// others are LibTorch's; one that it does not know is an invalid resource.
template <typename Call>
int OnStream(int device, int64_t stream, const Call& call) {
  return OnDevice(device, [&]() -> int {
    if (stream == 0) return call(nullptr);
    try {
      const c10::Device place(c10::kCUDA,
                              static_cast<c10::DeviceIndex>(device));
      return call(
          c10::cuda::CUDAStream(c10::Stream(c10::Stream::UNSAFE, place, stream))
              .stream());
    } catch (const std::exception&) {
      return cudaErrorInvalidResourceHandle;
    }
  });
}

int IsCapturing(int device, int64_t stream, int* is_capturing) {
  return OnStream(device, stream, [&](cudaStream_t of_cuda) {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaError_t code = cudaStreamIsCapturing(of_cuda, &status);
    *is_capturing = status == cudaStreamCaptureStatusNone ? 0 : 1;
    return code;
  });
}

cudaEvent_t EventOf(void* event) { return static_cast<cudaEvent_t>(event); }

int MakeSleepingEvent(int device, void** event) {
  return OnDevice(device, [&] {
    cudaEvent_t made = nullptr;
    const cudaError_t code = cudaEventCreateWithFlags(
        &made, cudaEventDisableTiming | cudaEventBlockingSync);
    *event = made;
    return code;
  });
}
int Record(int device, void* event, int64_t stream) {
  return OnStream(device, stream, [&](cudaStream_t of_cuda) {
    return cudaEventRecord(EventOf(event), of_cuda);
  });
}
int Wait(int device, void* event) {
  return OnDevice(device, [&] { return cudaEventSynchronize(EventOf(event)); });
}

}  // namespace

namespace c10 {

REGISTER_FREE_MEMORY_CALLBACK(terrace_relief, TerraceRelief)

}  // namespace c10

extern "C" __attribute__((visibility("default"))) const TerraceTorchCudaCalls*
terrace_torch_cuda_calls(void) {
  static const TerraceTorchCudaCalls calls = {
      .version = TERRACE_TORCH_CUDA_CALLS_VERSION,
      .runtime = terrace_cuda_calls(),
      .set_relief = SetRelief,
      .is_capturing = IsCapturing,
      .make_sleeping_event = MakeSleepingEvent,
      .record = Record,
      .wait = Wait,
  };
  return &calls;
}
