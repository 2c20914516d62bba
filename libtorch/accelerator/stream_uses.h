// On which streams a tensor's bytes were used since they came to the device,
// and what that means for who has their memory next. A pin says that an
// operation is in flight on the CPU; the device may begin it much later, so
// that pins protect nothing there. Streams do, by these rules:
//
//   1 what a stream is given first for this tensor comes after the copy that
//     brought its bytes; the home stream's, whose memory it is, in any case
//   2 every other stream is recorded with the allocator before its first use,
//     so that the block is safe however it ends: evicted, or with its
//     storage
//   3 a copy to memory comes after all that the streams were given until then
//   4 nothing is evicted while a graph is captured on a stream that is the
//     calling thread's or has used it, and what a graph has used stays for
//     good: the graph has its address
//   5 what a collective of somebody else's has used stays until the step's end,
//     and then until the device has done everything, since that runs on a
//     stream that is not seen here
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

  bool Has(StreamId stream) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  std::vector<StreamId> streams() const;

  mutable Mutex mutex_;
  std::vector<StreamId> streams_ ABSL_GUARDED_BY(mutex_);  // home first
  std::shared_ptr<DeviceEvent> arrived_ ABSL_GUARDED_BY(mutex_);
  Collective collective_ ABSL_GUARDED_BY(mutex_) = Collective::kNone;
  bool is_in_graph_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace terrace
