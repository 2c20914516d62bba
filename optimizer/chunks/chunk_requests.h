// An optimizer's requests for single chunks, over its queue: those of a step's
// attempts, which are pushed ahead, and those outside of steps, one at a time.
// A request may outlive its maker: an attempt that was abandoned, a fetch
// whose deadline passed. Tags tell them apart.
//
// One thread at a time. The clock must outlive it; without chunks it needs no
// queue. Deadlines are by the clock; by the wall's only where the queue, as a
// public one, is given them.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "terrace/pin.h"
#include "terrace/request.h"
#include "terrace/tensor.h"

namespace terrace {

// The end of a request.
struct ChunkReady {
  static constexpr int kOfAFetch = -1;

  int chunk = kOfAFetch;    // or that of a fetch that was given up
  bool is_current = false;  // of the attempt that runs
  absl::StatusOr<Pin> pin;
  WaitCause cause = WaitCause::kNone;
};

class ChunkRequests {
 public:
  explicit ChunkRequests(Clock& clock) : clock_(clock) {}
  ChunkRequests(const ChunkRequests&) = delete;
  ChunkRequests& operator=(const ChunkRequests&) = delete;

  // The queue goes, its requests end with it.
  void CloseQueue() { queue_.reset(); }
  // Requests go there from here on; what was pushed is forgotten.
  void SetQueue(std::unique_ptr<RequestQueue> queue) {
    queue_ = std::move(queue);
    pushed_ = 0;
  }

  // Requests that are pushed from here on are of a new attempt.
  void BeginAttempt() { ++attempt_; }
  // As RequestQueue's; OK without a queue.
  absl::Status BeginStep(int64_t step);
  // As BeginStep, of a step that was told to have failed. The queue tells the
  // next step which write-backs failed since: that one would fail for what
  // BeginStep tries again.
  absl::Status BeginStepAgain(int64_t step);
  absl::Status CommitStep(int64_t step);
  absl::Status AbortStep();

  // As RequestQueue::Push.
  absl::Status Push(int chunk, TensorId tensor, Access access,
                    absl::Time deadline);
  // The next end, as RequestQueue::Next.
  absl::StatusOr<ChunkReady> Next(absl::Time deadline);
  // Ends a Next that waits, as RequestQueue::Wake. Any thread, while an attempt
  // runs: the queue stays then.
  void Wake() {
    if (queue_ != nullptr) queue_->Wake();
  }
  // Requests of steps that the queue still holds.
  int64_t pushed() const { return pushed_; }

  // One chunk, outside of steps: nothing may be pushed.
  absl::StatusOr<Pin> Fetch(TensorId tensor, Access access,
                            absl::Time deadline);
  // What came of a fetch that was given up: nothing was written.
  static void Drop(ChunkReady ready);

 private:
  Clock& clock_;
  std::unique_ptr<RequestQueue> queue_;
  uint64_t attempt_ = 0;
  uint64_t fetches_ = 0;
  int64_t pushed_ = 0;
};

}  // namespace terrace
