// One step's way through the chunks: pushes those that are missing, hands each
// to the executor as it becomes ready, and keeps count (step_progress.h), so
// that no chunk is updated twice in a step and none is forgotten, whatever
// fails.
//
// One thread at a time (the customer's); kernels run on the executor. Chunks,
// requests, meter, clock and executor must outlive it, and its last kernel must
// have ended before it goes.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/executor.h"
#include "optimizer/chunks/chunk_requests.h"
#include "optimizer/chunks/chunk_table.h"
#include "optimizer/step/chunk_update.h"
#include "optimizer/step/gradient_supply.h"
#include "optimizer/step/staged_updates.h"
#include "optimizer/step/step_meter.h"
#include "optimizer/step/step_progress.h"
#include "optimizer/step/stepped_parameters.h"

namespace terrace {

class ChunkPipeline {
 public:
  // `chunks` may grow between steps.
  ChunkPipeline(ChunkTable& chunks, ChunkRequests& requests, Clock& clock,
                Executor& executor, StepMeter& meter)
      : chunks_(chunks),
        requests_(requests),
        clock_(clock),
        executor_(executor),
        meter_(meter),
        stepped_(chunks),
        supply_(chunks, stepped_) {}
  ChunkPipeline(const ChunkPipeline&) = delete;
  ChunkPipeline& operator=(const ChunkPipeline&) = delete;

  // The requests have a new queue, of that many slots: at most so many chunks
  // are updated at a time, so that its window is never full of our own pins. No
  // attempt may be running.
  void SetSlots(int slots);
  // Forgets what a step is missing. Nothing may be pushed.
  void Clear();

  // A new step of these parameters' chunks, where they have a gradient; if it
  // `tells`, TakeStepped names them. None may be missing.
  void BeginStep(absl::Span<const ParameterData> parameters, bool tells);
  // An attempt at the missing chunks, first at those in `order`; clears the
  // error. `step` must stay valid until the attempt ends. `deadline` is that of
  // its requests.
  void BeginAttempt(const UpdateStep& step, absl::Time deadline,
                    const std::vector<int>& order);

  // The only attempt at a gradual step (gradient_supply.h): of parameters whose
  // gradient in `expected` is not null, of chunks in this order. Ends with its
  // first error.
  void BeginGradual(const UpdateStep& step,
                    absl::Span<const ParameterSpec> specs,
                    absl::Span<const ParameterData> expected,
                    const std::vector<int>& order);
  // The step has the gradient of a parameter; and those that it will have.
  void Supply(int parameter);
  void EndSupply();
  // As GradualStep's.
  void TakeStepped(std::vector<int>* parameters) { stepped_.Take(parameters); }
  // Of the chunks of a parameter those that were not pushed yet go first; and
  // once all are under way, no copies from a device begin until they have ended
  // and Advance has returned.
  void Hasten(int parameter);

  // As far as it goes without blocking: chunks that are ready, copies that have
  // ended. True: the attempt has ended; error() is OK if and only if no chunk
  // is missing.
  bool Advance();
  // Blocks until Advance can go further, or may tell more. False: the deadline
  // passed.
  // ChunkRequests::Wake ends a Wait for the queue, or else the next one.
  bool Wait(absl::Time deadline);
  // Ends the attempt with `error`: nothing more is taken. What is pushed
  // stays so and is taken by the next attempt.
  void Stop(absl::Status error);
  // Blocks until no kernel runs and no copy is under way; what had not arrived
  // by then is given up. Nothing of the step goes on.
  void WaitForTasks();

  // The first error of the attempt; a DataLoss goes before all others.
  const absl::Status& error() const { return error_; }
  // Chunks that are not updated, or whose parameters are not back.
  int64_t missing() const { return progress_.missing() + staged_.kept(); }

 private:
  // What came of a look at the queue: nothing in time, what was taken (or the
  // attempt's end), a Wake, or that a kernel has to end first.
  enum class Look : uint8_t { kNothing, kTaken, kWoken, kBlocked };

  bool CanTake() const;
  Look TakeNext(absl::Time deadline);
  void PushMissing();
  void Take(ChunkReady ready);
  void TakeRefusal(int chunk, bool is_current, const absl::Status& status);
  void TakeGradual(int chunk, Pin pin);
  void DispatchDue();
  void Dispatch(int chunk, Pin pin);
  absl::StatusOr<std::unique_ptr<StagedChunk>> Stage(int chunk) const;
  void RunRanges(const StagedUpdate& update);
  // Copies that have ended: updates begin, slots are free. Whether a parameter
  // that is awaited is there.
  bool TakeStaged();
  void TakeNotArrived(const StagedUpdate& staged, const absl::Status& status);
  Look WaitForChunk(absl::Time deadline);
  void Fail(absl::Status error);

  ChunkTable& chunks_;
  ChunkRequests& requests_;
  Clock& clock_;
  Executor& executor_;
  StepMeter& meter_;
  int slots_ = 0;
  StepProgress progress_;

  // Of the attempt.
  const UpdateStep* step_ = nullptr;
  absl::Time deadline_;
  int most_updating_ = 0;  // chunks at a time
  int ranges_ = 1;         // tasks for a chunk
  bool stopped_ = false;
  // The queue said that only our pins block it, when this many kernels had
  // ended; -1: it did not.
  int64_t ended_when_blocked_ = -1;
  int64_t ended_before_ = 0;  // when Advance began: Wait is for those since
  absl::Status error_;
  // Chunks with a pin, kernels or a slot; of those without a slot decreased by
  // tasks, before the meter counts their end.
  std::atomic<int> updating_ = 0;
  SteppedParameters stepped_;
  GradientSupply supply_;
  StagedUpdates staged_;  // added to by the tasks, before too
};

}  // namespace terrace
