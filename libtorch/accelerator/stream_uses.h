// StreamUses knows the streams on which a tensor's bytes were used since they
// came to the device, by the rules of stream_rules.h.
//
// It is thread-safe. Note is for threads that have the tensor pinned, beside
// each other; TakeEvents is for the one thread that has it leave. No lock is
// held across a call to the device.
#pragma once

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "base/mutex.h"
#include "libtorch/accelerator/stream_rules.h"
#include "libtorch/accelerator/streamed_device.h"

namespace terrace {

class StreamUses {
 public:
  // What a stream is told: whether it is a new one here, and what it is to wait
  // for then, if anything.
  struct Noted {
    bool is_new = false;
    std::shared_ptr<DeviceEvent> filled;
  };
  // The stream is given something that uses the bytes, now or soon.
  Noted Note(StreamId stream);
  // A copy on that stream fills the bytes, which other streams are to wait for.
  void NoteFill(std::shared_ptr<DeviceEvent> filled, StreamId stream);
  // Returns events that stand for all that the noted streams were given until
  // now; TakeEvents begins anew then, if there was no error.
  absl::StatusOr<DeviceEvents> Events(StreamedDevice& device) const;
  absl::StatusOr<DeviceEvents> TakeEvents(StreamedDevice& device);

 private:
  const StreamRules rules_ = StreamRules::Current();
  mutable Mutex mutex_;
  absl::InlinedVector<StreamId, 2> streams_ ABSL_GUARDED_BY(mutex_);
  // Null: all streams see the bytes.
  std::shared_ptr<DeviceEvent> filled_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
