// DeviceWork is a hook's side of one accelerator: what it gives the device, and
// how it hears that the device has done what operations were given with a
// tensor's bytes. A thread of its own waits for that (event_thread.h).
//
// It is thread-safe. Errors name the device.
#pragma once

#include <c10/core/Allocator.h>
#include <c10/core/Device.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "libtorch/accelerator/event_thread.h"
#include "libtorch/accelerator/stream_rules.h"
#include "libtorch/accelerator/stream_uses.h"
#include "libtorch/accelerator/torch_streams.h"

namespace terrace {

class DeviceWork {
 public:
  // The device has its index, and LibTorch knows it as an accelerator: else
  // InvalidArgument. ResourceExhausted: there is no thread to be had.
  static absl::StatusOr<std::shared_ptr<DeviceWork>> Create(c10::Device device);

  c10::Device device() const { return streams_->device(); }

  // The calling thread's stream is given something that uses the bytes.
  void NoteUse(StreamUses& uses) { uses.Note(streams_->CurrentStream()); }
  // A lease of the calling thread's ends.
  void NoteLease(StreamUses& uses);

  // Has the calling thread's stream copy bytes of the device, which counts as a
  // use. `recorded`, if any, is LibTorch's own block that the source lies in.
  absl::Status Copy(std::byte* target, const std::byte* source, int64_t bytes,
                    StreamUses& uses, const c10::DataPtr* recorded = nullptr);
  // Memory of LibTorch's allocator.
  absl::StatusOr<c10::DataPtr> Allocate(int64_t bytes);

  // Blocks until all noted uses are over.
  absl::Status Await(const StreamUses& uses);
  // Calls `done` once all noted uses are over, and begins anew with them, in
  // the order of these calls; with an error where the device has failed, or
  // does not tell. In a forked child `done` is never called.
  void After(StreamUses& uses, EventThread::Done done);

 private:
  explicit DeviceWork(c10::Device device)
      : streams_(std::make_shared<TorchStreams>(device)), thread_(streams_) {}

  const StreamRules rules_ = StreamRules::Current();
  const std::shared_ptr<TorchStreams> streams_;
  EventThread thread_;
};

}  // namespace terrace
