// A queue of bytes: tensors of any sizes, for a customer of many threads that
// holds what it uses, and what it may use again, pinned.
//
//   auto queue = runtime->OpenBytes(window_bytes);
//   auto request = (*queue)->Push({{weight}, {gradient, Access::kUpdate}},
//                                 /*in_use=*/{}, late);
//   while (true) {
//     absl::StatusOr<Awaited> news = (*queue)->Await(*request, late);
//     for (uint64_t token : news->recalls) Answer(token);
//     if (news->pins.has_value()) break;
//   }
//
// Any thread pushes a group and waits for its own request: there is no first in
// first out. A group that finds no room does not hold up a later one that needs
// none, or that fits, or whose asker uses pins; but room that others left to it
// is taken by the last of these alone. Many pins may be held that nobody uses:
// these are idle, and a tensor whose pin is idle costs nothing to use.
//
// Recalls. Where room is needed, more is held than is to be, or another's
// access excludes a pin, the pin is asked for back: its token comes as a recall
// to a thread that waits in Await, or, where none does, to the one in
// AwaitRecalls (terrace/recall_thread.h). Whoever takes a recall answers it:
// where the pin is idle the pin ends; where it is in use, Keep(token), and the
// pin ends as soon as its use does. So each recall is followed by exactly one
// end of its pin, and a pin is recalled once at most. A thread may be told of a
// pin that another has taken and not noted yet, which is in use, or has just
// ended, for which Keep does nothing. The end of a pin gives up the pin and not
// the bytes: these stay in memory until their room is taken. A pin whose recall
// is not answered stays, and who waits for it waits until its own deadline.
//
// Room. `window_bytes` is what the customer is sure to have for pins in use,
// beside the windows of all other queues. What is idle is a resident like any
// other; of a customer that is to hold no more than some bytes what is beyond
// them is asked back too, so that it can leave at once for others. Of all
// tensors the one leaves first that is used last from now on, by the order of
// all customers' uses: a Push is a use, and Touch tells of those that need
// none. Where all who hold pins wait for room, the oldest group is had beyond
// the budget, in the process's other memory (Awaited::beyond_bytes,
// Stats::bytes), until its pins end: they are recalled with the answer, and so
// are those of what lies in another queue's window.
//
// Lanes. Uses that follow each other, as those of a model's operations, are a
// lane; others that come beside them at a pace that changes, as copies of
// updates, are another. What a step uses is expected in the order that each
// lane had in the last step, wherever the other lanes are.
//
// Thread-safe. The destructor must not run beside another call; it cancels what
// is pushed, and pins that were taken stay valid. After Runtime::Close, and in
// a forked child, every call is Cancelled or does nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "terrace/pin.h"
#include "terrace/request.h"
#include "terrace/tensor.h"

namespace terrace {

// A queue's lanes are 0, 1, ... below this.
inline constexpr int kMostLanes = 4;

// What ended a wait.
struct Awaited {
  // The request's answer: a pin per Want, in order, or why not. None: not yet.
  std::optional<absl::StatusOr<std::vector<Pin>>> pins;
  WaitCause cause = WaitCause::kNone;
  int64_t beyond_bytes = 0;  // of the pins', headers included
  int64_t ahead = 0;         // pins whose tensors were read before the Push
  // Tokens of pins, of these or others, that this thread is to answer.
  std::vector<uint64_t> recalls;
};

class ByteQueue {
 public:
  virtual ~ByteQueue() = default;

  // Asks for a group: all of it or nothing; names the request. Never blocks.
  // `in_use`: tokens of the pins that the asker uses until it has the answer,
  // which cannot end before. InvalidArgument: no tensor, an unknown one, one
  // that is named twice, or no such lane. Not admitted by `deadline`:
  // ResourceExhausted, naming the holders.
  virtual absl::StatusOr<uint64_t> Push(absl::Span<const Want> wants,
                                        absl::Span<const uint64_t> in_use,
                                        Time deadline, int lane) = 0;
  absl::StatusOr<uint64_t> Push(absl::Span<const Want> wants,
                                absl::Span<const uint64_t> in_use,
                                Time deadline) {
    return Push(wants, in_use, deadline, /*lane=*/0);
  }
  // Waits for the request's answer, or for recalls. Each request is for one
  // thread at a time, until it is answered; by its deadline it is, but for what
  // its transfers take. DeadlineExceeded: neither came in time, and the request
  // stays. InvalidArgument: no such request, or its answer was taken.
  virtual absl::StatusOr<Awaited> Await(uint64_t request, Time deadline) = 0;
  // From here to EndWaiting the users of these pins wait for something else, as
  // another thread's request, or are the program: no room comes of their ends
  // meanwhile.
  virtual absl::Status BeginWaiting(absl::Span<const uint64_t> in_use) = 0;
  virtual void EndWaiting(absl::Span<const uint64_t> in_use) = 0;

  // The same wait for a thread that has no request: recalls come to it while no
  // thread is in Await. One thread. Aborted: by WakeRecalls.
  virtual absl::StatusOr<std::vector<uint64_t>> AwaitRecalls(Time deadline) = 0;
  // Ends an AwaitRecalls that waits, or else the next. Any thread.
  virtual void WakeRecalls() = 0;
  // The recalled pin is in use. Of one that has ended, nothing.
  virtual void Keep(uint64_t token) = 0;

  // From here on pins of at most so many bytes are held, headers included:
  // those beyond, first the ones that are used last, are asked back with the
  // answer to the group that makes them too many, whatever that answer is. So
  // each request is awaited as soon as it is pushed. Until then all may be
  // held.
  virtual absl::Status HoldAtMost(int64_t bytes) = 0;

  // Uses, in order, of tensors whose pins were held already. Of many thousands
  // of a lane that were not read yet only the last ones count: what is lost, as
  // what is told of no lane, costs traffic alone. A thread sends its uses
  // before each Push and BeginStep, and at the latest after 1024.
  virtual void Touch(absl::Span<const TensorId> tensors, int lane) = 0;
  void Touch(absl::Span<const TensorId> tensors) { Touch(tensors, /*lane=*/0); }

  // As RequestQueue's. From BeginStep on uses are expected to repeat in the
  // order that the last step had, with those of all other customers, and what
  // comes next is read ahead (Options::prefetch), as far as there is room that
  // is free, or whose tensors are used later: their pins are asked back. A step
  // of that order begins once for all of them: with the first BeginStep of one
  // that has begun one in the step before.
  virtual absl::Status BeginStep(int64_t step) = 0;
  virtual absl::Status CommitStep(const StepInfo& info) = 0;
  virtual absl::Status AbortStep() = 0;
};

}  // namespace terrace
