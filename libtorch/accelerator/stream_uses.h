// On which streams a tensor's bytes were used since they came to the device,
// and what that means for who has their memory next, by the rules of
// stream_rules.h.
//
// Use is for threads that have the tensor pinned, beside each other; the others
// are for the one thread that moves it then. No lock is held across a call to
// the device.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "base/mutex.h"
#include "libtorch/accelerator/stream_rules.h"
#include "libtorch/accelerator/streamed_device.h"

namespace terrace {

// Why a tensor has to stay on the device.
enum class Hindrance : uint8_t {
  kNone,
  kCapture,     // a graph is being captured
  kGraph,       // a graph has its address
  kCollective,  // of this step
  kUnfinished,  // a collective of a step before may not have ended
};

class StreamUses {
 public:
  explicit StreamUses(StreamRules rules = {}) : rules_(rules) {}

  // What brings the bytes on the stream `copy` from here on comes after what
  // the home stream was given before it allocated their block, just now.
  absl::Status BeginCopy(StreamedDevice& memory, StreamId home,
                         StreamId copy) const;
  // The bytes are in a block of this stream's memory, and complete once
  // `arrived` is (null: they are). Also where they stay, and a copy of them to
  // memory ends with `arrived`: until then no stream may write to them.
  absl::Status Begin(StreamedDevice& memory, StreamId home,
                     std::shared_ptr<DeviceEvent> arrived);
  // Before the stream is given something that looks at the bytes.
  // FailedPrecondition: a graph is being captured there, and cannot wait for
  // them.
  absl::Status Use(StreamedDevice& memory, StreamedBlock& block,
                   StreamId stream, bool is_capturing);
  // Waits until the bytes are complete: they need no stream's order then.
  absl::Status Settle(StreamedDevice& memory);
  // An operation of a collective, which is none of this library's, has it.
  void NoteCollective();
  void NoteStep();

  Hindrance FindHindrance(StreamedDevice& memory) const;
  // For kUnfinished: waits for the device.
  absl::Status AwaitCollectives(StreamedDevice& memory);
  // The stream comes after all uses so far.
  absl::Status AwaitUses(StreamedDevice& memory, StreamId stream) const;

 private:
  enum class Collective : uint8_t { kNone, kThisStep, kEarlier };

  void NoteCapture(bool is_capturing) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Has(StreamId stream) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<StreamId> streams() const;

  const StreamRules rules_;
  mutable Mutex mutex_;
  std::vector<StreamId> streams_ ABSL_GUARDED_BY(mutex_);  // home first
  std::shared_ptr<DeviceEvent> arrived_ ABSL_GUARDED_BY(mutex_);
  Collective collective_ ABSL_GUARDED_BY(mutex_) = Collective::kNone;
  bool is_in_graph_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace terrace
