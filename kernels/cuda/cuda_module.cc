// The one source that knows CUDA: its runtime's calls, passed on as they are.
// Host code only, built as a module of its own.
#include <cuda_runtime_api.h>

#include "kernels/cuda/cuda_calls.h"

namespace {

// Makes a device current for one call.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) {
    code_ = cudaGetDevice(&before_);
    if (code_ != cudaSuccess || before_ == device) return;
    code_ = cudaSetDevice(device);
    changed_ = code_ == cudaSuccess;
  }
  ~CurrentDevice() {
    if (changed_) cudaSetDevice(before_);
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;

  cudaError_t code() const { return code_; }

 private:
  int before_ = 0;
  bool changed_ = false;
  cudaError_t code_ = cudaSuccess;
};

// The call's code, or why the device cannot be made current.
template <typename Call>
int On(int device, const Call& call) {
  const CurrentDevice current(device);
  return current.code() != cudaSuccess ? current.code() : call();
}

cudaStream_t StreamOf(void* stream) {
  return static_cast<cudaStream_t>(stream);
}
cudaEvent_t EventOf(void* event) { return static_cast<cudaEvent_t>(event); }

const char* ErrorName(int code) {
  return cudaGetErrorName(static_cast<cudaError_t>(code));
}
const char* ErrorText(int code) {
  return cudaGetErrorString(static_cast<cudaError_t>(code));
}
void ForgetError() { cudaGetLastError(); }

int CountDevices(int* count) { return cudaGetDeviceCount(count); }
int Memory(int device, size_t* free, size_t* total) {
  return On(device, [&] { return cudaMemGetInfo(free, total); });
}
int Allocate(int device, void** address, size_t bytes) {
  return On(device, [&] { return cudaMalloc(address, bytes); });
}
int Free(int device, void* address) {
  return On(device, [&] { return cudaFree(address); });
}
int RegisterHost(int device, void* address, size_t bytes) {
  return On(device, [&] {
    return cudaHostRegister(address, bytes, cudaHostRegisterPortable);
  });
}
int UnregisterHost(int device, void* address) {
  return On(device, [&] { return cudaHostUnregister(address); });
}
int Synchronize(int device) {
  return On(device, [] { return cudaDeviceSynchronize(); });
}

int MakeStream(int device, void** stream) {
  return On(device, [&] {
    cudaStream_t made = nullptr;
    const cudaError_t code =
        cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);
    *stream = made;
    return code;
  });
}
int DestroyStream(int device, void* stream) {
  return On(device, [&] { return cudaStreamDestroy(StreamOf(stream)); });
}
int QueryStream(int device, void* stream) {
  return On(device, [&] { return cudaStreamQuery(StreamOf(stream)); });
}
int SynchronizeStream(int device, void* stream) {
  return On(device, [&] { return cudaStreamSynchronize(StreamOf(stream)); });
}
int Copy(int device, void* target, const void* source, size_t bytes,
         int to_device, void* stream) {
  return On(device, [&] {
    return cudaMemcpyAsync(
        target, source, bytes,
        to_device != 0 ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost,
        StreamOf(stream));
  });
}
int CallHost(int device, void* stream, void (*run)(void*), void* argument) {
  return On(device, [&] {
    return cudaLaunchHostFunc(StreamOf(stream), run, argument);
  });
}

int MakeEvent(int device, void** event) {
  return On(device, [&] {
    cudaEvent_t made = nullptr;
    const cudaError_t code =
        cudaEventCreateWithFlags(&made, cudaEventDisableTiming);
    *event = made;
    return code;
  });
}
int DestroyEvent(int device, void* event) {
  return On(device, [&] { return cudaEventDestroy(EventOf(event)); });
}
int Record(int device, void* event, void* stream) {
  return On(device,
            [&] { return cudaEventRecord(EventOf(event), StreamOf(stream)); });
}
int Query(int device, void* event) {
  return On(device, [&] { return cudaEventQuery(EventOf(event)); });
}
int WaitFor(int device, void* stream, void* event) {
  return On(device, [&] {
    return cudaStreamWaitEvent(StreamOf(stream), EventOf(event), 0);
  });
}

constexpr TerraceCudaCalls kCalls = {
    .version = TERRACE_CUDA_CALLS_VERSION,
    .not_ready = cudaErrorNotReady,
    .no_memory = cudaErrorMemoryAllocation,
    .error_name = ErrorName,
    .error_text = ErrorText,
    .forget_error = ForgetError,
    .count_devices = CountDevices,
    .memory = Memory,
    .allocate = Allocate,
    .free = Free,
    .register_host = RegisterHost,
    .unregister_host = UnregisterHost,
    .synchronize = Synchronize,
    .make_stream = MakeStream,
    .destroy_stream = DestroyStream,
    .query_stream = QueryStream,
    .synchronize_stream = SynchronizeStream,
    .copy = Copy,
    .call_host = CallHost,
    .make_event = MakeEvent,
    .destroy_event = DestroyEvent,
    .record = Record,
    .query = Query,
    .wait_for = WaitFor,
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const TerraceCudaCalls*
terrace_cuda_calls(void) {
  return &kCalls;
}
