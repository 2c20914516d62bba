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
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
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

  // The calling thread's stream, or that one, is given something that uses the
  // bytes.
  void NoteUse(StreamUses& uses) { NoteUse(uses, streams_->CurrentStream()); }
  void NoteUse(StreamUses& uses, StreamId stream);
  // A lease of the calling thread's ends.
  void NoteLease(StreamUses& uses);

  // Has the calling thread's stream fill bytes of a tensor from others of the
  // device, which other streams that use the tensor wait for. `recorded`, if
  // any, is LibTorch's own block that the source lies in: it is given to nobody
  // before all streams that used tensors here have come so far.
  absl::Status Fill(std::byte* target, const std::byte* source, int64_t bytes,
                    StreamUses& uses, const c10::DataPtr* recorded);
  // Copies bytes of the device, once all uses are over, and waits for that.
  absl::Status CopyOut(std::byte* target, std::byte* source, int64_t bytes,
                       const StreamUses& uses);
  // Blocks until the device has done all that it was given.
  absl::Status AwaitAll() { return streams_->WaitForAll(); }

  // Blocks until all noted uses are over.
  absl::Status Await(const StreamUses& uses);
  // Calls `done` once all noted uses are over, and begins anew with them, in
  // the order of these calls. In a forked child `done` is never called.
  void After(StreamUses& uses, EventThread::Done done);

 private:
  explicit DeviceWork(c10::Device device)
      : streams_(std::make_shared<TorchStreams>(device)), thread_(streams_) {}

  // Those that have used any tensor here.
  std::vector<StreamId> known() const;
  void Know(StreamId stream);

  const StreamRules rules_ = StreamRules::Current();
  const std::shared_ptr<TorchStreams> streams_;
  EventThread thread_;
  mutable Mutex mutex_;
  std::vector<StreamId> known_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
