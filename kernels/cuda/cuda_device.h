// A GPU as a Device, over the calls of the CUDA runtime.
//
// A copy has an event, which is polled; no thread waits for one. What OnDone
// was given is called from a stream beside the copies', which waits for the
// last copy's event: a call in the copies' own stream would hold up the next.
// Errors carry CUDA's name and code. An error that the device does not get rid
// of (a probe fails after it), or one of a copy that was under way, is for
// good.
//
// Thread-safe; a Stream is one thread at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "base/device.h"
#include "base/mutex.h"
#include "kernels/cuda/cuda_calls.h"

namespace terrace {

class CudaDevice final : public Device {
 public:
  // Unavailable: there is no such device, or no driver that runs it. The table
  // is for ever.
  static absl::StatusOr<std::shared_ptr<Device>> Open(
      const TerraceCudaCalls& calls, int device);
  ~CudaDevice() override;
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  std::string name() const override { return name_; }
  absl::Status Health() const override;
  absl::StatusOr<DeviceMemory> Allocate(int64_t bytes) override;
  absl::StatusOr<PinnedMemory> AllocatePinned(int64_t bytes) override;
  absl::StatusOr<std::unique_ptr<Stream>> MakeStream() override;
  // All of the device.
  absl::Status Synchronize() override;

 private:
  class CudaStream;
  // Which host memory is registered, in which pieces: a copy must not cross
  // from one into the next. Shared with registrations.
  class Pieces;

  CudaDevice(const TerraceCudaCalls& calls, int device, std::string name);

  absl::StatusOr<HostRegistration> Register(
      absl::Span<std::byte> piece) override;

  // OK of 0; else what `call` ended with, and whether that is for good.
  absl::Status Judge(absl::string_view call, int code);
  absl::Status Break(absl::string_view call, int code);
  absl::Status ErrorOf(absl::string_view call, int code) const;

  const TerraceCudaCalls& calls_;
  const int device_;
  const std::string name_;
  const std::shared_ptr<Pieces> pieces_;
  void* probe_ = nullptr;  // a stream without work
  mutable Mutex mutex_;
  absl::Status health_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
