// One step's way through the chunks: pushes those that are missing, hands each
// to the executor as it becomes ready, and keeps count, so that no chunk is
// updated twice in a step and none is forgotten, whatever fails.
//
// One thread at a time (the customer's); kernels run on the executor. Queue,
// chunks, meter, clock and executor must outlive it, and its last kernel must
// have ended before it goes. Without chunks it needs no queue. Deadlines are by
// the clock; by the wall's only where the queue, as a public one, is given
// them.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "runtime/base/clock.h"
#include "runtime/base/executor.h"
#include "runtime/base/mutex.h"
#include "runtime/optimizer/chunks/chunk_contents.h"
#include "runtime/optimizer/chunks/chunk_layout.h"
#include "runtime/optimizer/step/chunk_update.h"
#include "runtime/optimizer/step/step_meter.h"
#include "terrace/request.h"

namespace terrace {

class ChunkPipeline {
 public:
  // `chunks` may grow between steps; see AddChunks.
  ChunkPipeline(const std::vector<Chunk>& chunks, Clock& clock,
                Executor& executor, StepMeter& meter)
      : chunks_(chunks), clock_(clock), executor_(executor), meter_(meter) {}
  ChunkPipeline(const ChunkPipeline&) = delete;
  ChunkPipeline& operator=(const ChunkPipeline&) = delete;

  // From here on requests go to `queue`, and what was pushed is forgotten. No
  // attempt may be running. At most `slots` chunks are updated at a time, so
  // that the queue's window is never full of our own pins.
  void SetQueue(RequestQueue* queue, int slots);
  // The tensors of the chunks that were appended since the last call.
  void AddChunks(absl::Span<const TensorId> tensors);
  // Forgets what chunks hold and what a step is missing.
  void Clear();

  // A new step of the chunks with wanted[i] true. None may be missing.
  void BeginStep(const std::vector<bool>& wanted);
  // An attempt at the missing chunks; clears the error. `step` must stay valid
  // until the attempt ends. `deadline` is that of its requests.
  void BeginAttempt(const UpdateStep& step, absl::Time deadline);

  // As far as it goes without blocking. True: the attempt has ended; error()
  // is OK if and only if no chunk is missing.
  bool Advance();
  // Blocks until Advance can go further. False: the deadline passed.
  bool Wait(absl::Time deadline);
  // Ends the attempt with `error`: nothing more is taken. What is pushed
  // stays so and is taken by the next attempt.
  void Abandon(absl::Status error);

  // The first error of the attempt; a DataLoss goes before all others.
  const absl::Status& error() const { return error_; }
  int64_t missing() const { return missing_; }
  // Requests that the queue still holds for us.
  int64_t pushed() const { return pushed_; }
  TensorId tensor(int chunk) const {
    return tensors_[static_cast<size_t>(chunk)];
  }
  // What a chunk holds. Kept up by the updates; otherwise by who writes.
  ChunkContents& contents(int chunk) {
    return contents_[static_cast<size_t>(chunk)];
  }
  const ChunkContents& contents(int chunk) const {
    return contents_[static_cast<size_t>(chunk)];
  }

  // One chunk, outside of steps: no attempt may be running and nothing pushed.
  // kRead: of a chunk that is not fresh.
  absl::StatusOr<Pin> Fetch(int chunk, Access access, absl::Time deadline);

 private:
  enum class State : uint8_t { kDone, kMissing, kPushed };

  static void DropFetched(Ready ready);
  bool CanTake() const;
  bool TakeNext(absl::Time deadline);
  void PushMissing();
  bool Take(absl::StatusOr<Ready> ready);
  void Dispatch(int chunk, Pin pin);
  absl::StatusOr<std::unique_ptr<StagedChunk>> Stage(int chunk) const;
  void SetUpdated(int chunk);
  void TakeUnstaged();
  void Fail(absl::Status error);

  const std::vector<Chunk>& chunks_;
  std::vector<TensorId> tensors_;  // tensors_[i] holds chunks_[i]
  RequestQueue* queue_ = nullptr;
  int slots_ = 0;
  int most_updating_ = 0;  // chunks of this attempt at a time
  Clock& clock_;
  Executor& executor_;
  StepMeter& meter_;
  int ranges_ = 1;  // tasks for a chunk

  std::vector<State> states_;
  std::vector<ChunkContents> contents_;
  int64_t missing_ = 0;      // chunks not kDone
  int64_t pushed_ = 0;       // chunks kPushed
  std::deque<int> to_push_;  // of this attempt
  const UpdateStep* step_ = nullptr;
  absl::Time deadline_;
  uint64_t attempt_ = 0;
  uint64_t fetches_ = 0;
  bool stopped_ = false;
  // The queue said that only our pins block it, when this many had ended.
  bool blocked_by_kernels_ = false;
  int64_t ended_when_blocked_ = 0;
  absl::Status error_;
  // Chunks with kernels; decreased by tasks before the meter counts their end.
  std::atomic<int> updating_ = 0;

  // Chunks whose copies from or to a device failed, by the tasks, before too.
  struct Unstaged {
    int chunk;
    std::shared_ptr<ChunkUpdate> update;
  };
  Mutex mutex_;
  std::vector<Unstaged> unstaged_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace terrace
