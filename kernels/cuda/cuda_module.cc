// What knows CUDA: its runtime's calls, passed on as they are.
// Host code only. It is built as a module of its own, and as a part of the one
// that knows LibTorch's CUDA.
#include <cuda_runtime_api.h>

#include "kernels/cuda/cuda_calls.h"
#include "kernels/cuda/current_device.h"

namespace {

using terrace::OnDevice;

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
  return OnDevice(device, [&] { return cudaMemGetInfo(free, total); });
}
int Allocate(int device, void** address, size_t bytes) {
  return OnDevice(device, [&] { return cudaMalloc(address, bytes); });
}
int Free(int device, void* address) {
  return OnDevice(device, [&] { return cudaFree(address); });
}
int RegisterHost(int device, void* address, size_t bytes) {
  return OnDevice(device, [&] {
    return cudaHostRegister(address, bytes, cudaHostRegisterPortable);
  });
}
int UnregisterHost(int device, void* address) {
  return OnDevice(device, [&] { return cudaHostUnregister(address); });
}
int Synchronize(int device) {
  return OnDevice(device, [] { return cudaDeviceSynchronize(); });
}

int MakeStream(int device, void** stream) {
  return OnDevice(device, [&] {
    cudaStream_t made = nullptr;
    const cudaError_t code =
        cudaStreamCreateWithFlags(&made, cudaStreamNonBlocking);
    *stream = made;
    return code;
  });
}
int DestroyStream(int device, void* stream) {
  return OnDevice(device, [&] { return cudaStreamDestroy(StreamOf(stream)); });
}
int QueryStream(int device, void* stream) {
  return OnDevice(device, [&] { return cudaStreamQuery(StreamOf(stream)); });
}
int SynchronizeStream(int device, void* stream) {
  return OnDevice(device,
                  [&] { return cudaStreamSynchronize(StreamOf(stream)); });
}
int Copy(int device, void* target, const void* source, size_t bytes,
         int to_device, void* stream) {
  return OnDevice(device, [&] {
    return cudaMemcpyAsync(
        target, source, bytes,
        to_device != 0 ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToHost,
        StreamOf(stream));
  });
}
int CallHost(int device, void* stream, void (*run)(void*), void* argument) {
  return OnDevice(device, [&] {
    return cudaLaunchHostFunc(StreamOf(stream), run, argument);
  });
}

int MakeEvent(int device, void** event) {
  return OnDevice(device, [&] {
    cudaEvent_t made = nullptr;
    const cudaError_t code =
        cudaEventCreateWithFlags(&made, cudaEventDisableTiming);
    *event = made;
    return code;
  });
}
int DestroyEvent(int device, void* event) {
  return OnDevice(device, [&] { return cudaEventDestroy(EventOf(event)); });
}
int Record(int device, void* event, void* stream) {
  return OnDevice(device, [&] {
    return cudaEventRecord(EventOf(event), StreamOf(stream));
  });
}
int Query(int device, void* event) {
  return OnDevice(device, [&] { return cudaEventQuery(EventOf(event)); });
}
int WaitFor(int device, void* stream, void* event) {
  return OnDevice(device, [&] {
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
