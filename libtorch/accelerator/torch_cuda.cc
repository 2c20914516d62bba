#include "libtorch/accelerator/torch_cuda.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/headeronly/version.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/module_entry.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

constinit ReliefPort cuda_relief;

int RelieveCuda() { return cuda_relief.Relieve() ? 1 : 0; }

absl::Status NoTorchCuda(absl::string_view why) {
  return absl::UnavailableError(
      absl::StrCat("no module for LibTorch's CUDA: ", why));
}

absl::StatusOr<const TerraceTorchCudaCalls*> TorchCallsOf(
    const absl::StatusOr<void*>& entry) {
  if (!entry.ok()) return NoTorchCuda(entry.status().message());
  const TerraceTorchCudaCalls* const calls =
      reinterpret_cast<const TerraceTorchCudaCalls* (*)()>(*entry)();
  if (calls->version != TERRACE_TORCH_CUDA_CALLS_VERSION) {
    return NoTorchCuda(absl::StrCat("it is of version ", calls->version,
                                    ", not ",
                                    TERRACE_TORCH_CUDA_CALLS_VERSION));
  }
  if (calls->runtime->version == TERRACE_CUDA_CALLS_VERSION) return calls;
  return NoTorchCuda(absl::StrCat("its calls of CUDA are of version ",
                                  calls->runtime->version, ", not ",
                                  TERRACE_CUDA_CALLS_VERSION));
}

// The runtime's error does not stay the thread's last one, which LibTorch would
// take for its own.
absl::Status CudaOutcome(const TerraceTorchCudaCalls& calls, int device,
                         absl::string_view call, int code) {
  if (code == 0) return absl::OkStatus();
  const TerraceCudaCalls& cuda = *calls.runtime;
  cuda.forget_error();
  return absl::Status(
      code == cuda.no_memory ? absl::StatusCode::kResourceExhausted
                             : absl::StatusCode::kUnavailable,
      absl::StrCat("cuda:", device, ": ", call, ": ", cuda.error_name(code),
                   " (", code, "): ", cuda.error_text(code)));
}

}  // namespace

absl::StatusOr<const TerraceTorchCudaCalls*> LoadTorchCuda(
    const std::string& file) {
  return TorchCallsOf(ModuleEntry(file, TERRACE_TORCH_CUDA_CALLS_ENTRY));
}

absl::StatusOr<const TerraceTorchCudaCalls*> LoadTorchCuda() {
  return TorchCallsOf(ModuleEntryBeside(
      reinterpret_cast<const void*>(&NoTorchCuda),
      absl::StrCat("libterrace_torch_cuda-", TORCH_VERSION_MAJOR, ".",
                   TORCH_VERSION_MINOR, ".so"),
      TERRACE_TORCH_CUDA_CALLS_ENTRY));
}

absl::StatusOr<TorchCuda> TorchCuda::Open() {
  // Asked of what LibTorch's own library for CUDA registers as it is loaded.
  if (!c10::impl::hasDeviceGuardImpl(c10::kCUDA)) {
    return absl::UnavailableError("LibTorch has no CUDA in this process");
  }
  if (c10::impl::getDeviceGuardImpl(c10::kCUDA)->deviceCount() == 0) {
    return absl::UnavailableError("LibTorch sees no device of CUDA");
  }
  TERRACE_ASSIGN_OR_RETURN(const TerraceTorchCudaCalls* const calls,
                           LoadTorchCuda());
  // LibTorch counts one in a process that only pretends to have it.
  int count = 0;
  const int code = calls->runtime->count_devices(&count);
  TERRACE_RETURN_IF_ERROR(CudaOutcome(*calls, 0, "cudaGetDeviceCount", code));
  if (calls->set_relief(&RelieveCuda) == 0) {
    return NoTorchCuda("it serves another library of Terrace's");
  }
  return TorchCuda(*calls);
}

ReliefPort& TorchCuda::relief() { return cuda_relief; }

absl::StatusOr<bool> TorchCuda::IsCapturing(int device, StreamId stream) const {
  int is_capturing = 0;
  const int code = calls_->is_capturing(device, stream, &is_capturing);
  TERRACE_RETURN_IF_ERROR(
      CudaOutcome(*calls_, device, "cudaStreamIsCapturing", code));
  return is_capturing != 0;
}

absl::StatusOr<TorchCuda::SleepingEvent> TorchCuda::Record(
    int device, StreamId stream) const {
  void* made = nullptr;
  int code = calls_->make_sleeping_event(device, &made);
  TERRACE_RETURN_IF_ERROR(
      CudaOutcome(*calls_, device, "cudaEventCreateWithFlags", code));
  SleepingEvent event(*calls_, device, made);
  code = calls_->record(device, made, stream);
  TERRACE_RETURN_IF_ERROR(
      CudaOutcome(*calls_, device, "cudaEventRecord", code));
  return event;
}

absl::Status TorchCuda::RegisterHost(int device,
                                     absl::Span<std::byte> range) const {
  return CudaOutcome(
      *calls_, device, "cudaHostRegister",
      calls_->runtime->register_host(device, range.data(), range.size()));
}

absl::Status TorchCuda::UnregisterHost(int device, std::byte* begin) const {
  return CudaOutcome(*calls_, device, "cudaHostUnregister",
                     calls_->runtime->unregister_host(device, begin));
}

absl::StatusOr<TorchCuda::Memory> TorchCuda::MemoryOf(int device) const {
  size_t free = 0;
  size_t total = 0;
  const int code = calls_->runtime->memory(device, &free, &total);
  TERRACE_RETURN_IF_ERROR(CudaOutcome(*calls_, device, "cudaMemGetInfo", code));
  return Memory{static_cast<int64_t>(free), static_cast<int64_t>(total)};
}

TorchCuda::SleepingEvent::SleepingEvent(SleepingEvent&& other) noexcept
    : calls_(other.calls_),
      device_(other.device_),
      event_(std::exchange(other.event_, nullptr)) {}

TorchCuda::SleepingEvent::~SleepingEvent() {
  if (event_ == nullptr) return;
  const TerraceCudaCalls& cuda = *calls_.runtime;
  if (cuda.destroy_event(device_, event_) != 0) cuda.forget_error();
}

absl::Status TorchCuda::SleepingEvent::Wait() {
  return CudaOutcome(calls_, device_, "cudaEventSynchronize",
                     calls_.wait(device_, event_));
}

}  // namespace terrace
