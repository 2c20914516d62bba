// One customer's pipeline: it pushes what it wants, in order, and takes it in
// the order in which it becomes ready.
//
//   queue->BeginStep(step);
//   for (TensorId t : chunks) queue->Push({{t, Access::kUpdate}}, i++, late);
//   while (...) { StatusOr<Ready> ready = queue->Next(late); ... }
//   queue->CommitStep({step});
//
// One thread at a time; pins may be released on any thread. All methods may
// be called after an error; after Runtime::Close each is Cancelled.
//
// The queue is closed by its destructor, which cancels what is pushed. Pins
// taken from it stay valid. Its window's bytes are free again when the last
// of its slots is: released and, if dirty, written back. A tensor whose
// write-back failed, and that no other path takes, keeps its slot and its
// contents, which any queue may ask for, until a BeginStep or an OpenQueue
// tries again and succeeds.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "terrace/pin.h"
#include "terrace/tensor.h"

namespace terrace {

// By the wall clock, as absl::Now() tells it at the call. What counts is how
// far ahead it is then: setting the clock later changes nothing.
using Time = absl::Time;

enum class Access : uint8_t {
  kRead,       // contents are fetched, and stay as they are
  kUpdate,     // contents are fetched, and may be changed
  kOverwrite,  // every byte will be written, so nothing is fetched
};

struct Want {
  TensorId tensor;
  Access access = Access::kRead;
};

// What a ready group waited for last, measured by the mover. For attributing
// blocked time.
enum class WaitCause : uint8_t { kNone, kRead, kWriteBack, kSpace };

struct Ready {
  uint64_t tag = 0;  // as pushed
  absl::StatusOr<std::vector<Pin>> pins =
      absl::UnknownError("not ready");  // one per Want, in order; or why not
  WaitCause cause = WaitCause::kNone;
};

struct StepInfo {
  int64_t step = 0;
};

class RequestQueue {
 public:
  virtual ~RequestQueue() = default;

  // Asks for a group: all of it or nothing. Never blocks. Groups are admitted
  // first in, first out; a waiting group holds nothing. InvalidArgument: an
  // unknown tensor, one named twice, or more than the window's slots.
  // Not admitted by `deadline`: ResourceExhausted, naming the holders.
  virtual absl::Status Push(absl::Span<const Want> wants, uint64_t tag,
                            Time deadline) = 0;

  // The next ready group. FailedPrecondition at once when nothing is pushed
  // or when only this queue's own pins block the head (a slot whose
  // write-back failed is named); DeadlineExceeded when nothing became ready
  // in time (the pushed groups stay); Cancelled, also
  // while it waits, by Runtime::Close. A group that failed is a Ready with its
  // Status.
  virtual absl::StatusOr<Ready> Next(Time deadline) = 0;

  // For a customer that waits in Next for other things too: whoever changes one
  // of them calls Wake afterwards, and the customer looks at all of them after
  // each Next. Wake ends a Next that waits, or else the next Next that finds
  // nothing ready, as Aborted; the pushed groups stay. So no change is missed,
  // and several may be told of by one Aborted. Any thread may call Wake until
  // the queue's destructor begins; it does not block.
  virtual void Wake() = 0;

  // From here the access trace repeats: what was pushed in the last step is
  // prefetched in the same order in this one. Also tries failed write-backs,
  // of all queues, and refusing paths again. FailedPrecondition when a step is
  // open.
  virtual absl::Status BeginStep(int64_t step) = 0;

  // The first error of this queue's tensors since BeginStep, or OK; one that
  // was lost before counts when it is asked for. In scratch mode it does not
  // wait for write-backs: an error of one of them is returned by the next
  // CommitStep, unless another path took the tensor, or an OpenQueue, or a
  // BeginStep of another queue, tried again before that step began: then only
  // Stats tells. Ends the step either way.
  // FailedPrecondition when no step is open, or another one than info.step:
  // that one then stays open.
  virtual absl::Status CommitStep(const StepInfo& info) = 0;

  // Ends the step and forgets its trace and its errors, which are also those
  // that the next CommitStep was to return. In scratch mode what was published
  // stays published.
  virtual absl::Status AbortStep() = 0;
};

}  // namespace terrace
