#include "optimizer/step/chunk_pipeline.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/io_fault.h"

namespace terrace {
namespace {

// "chunk 3 of 17: ".
std::string Named(int chunk, const ChunkTable& chunks) {
  return absl::StrCat("chunk ", chunk, " of ", chunks.size(), ": ");
}

}  // namespace

void ChunkPipeline::SetSlots(int slots) {
  TERRACE_CHECK(updating_ == 0 && slots >= 1);
  slots_ = slots;
  progress_.ForgetPushed();
}

void ChunkPipeline::Clear() {
  TERRACE_CHECK(requests_.pushed() == 0);
  progress_.Clear();
  staged_.GiveUpKept();
  stopped_ = false;
  error_ = absl::OkStatus();
}

void ChunkPipeline::BeginStep(absl::Span<const ParameterData> parameters,
                              bool tells) {
  progress_.Resize(chunks_.size());
  progress_.BeginStep(chunks_.WithGradient(parameters));
  stepped_.Clear();
  if (!tells) return;
  stepped_.Begin(parameters.size());
  for (size_t i = 0; i < parameters.size(); ++i) {
    if (parameters[i].gradient != nullptr) stepped_.Expect(static_cast<int>(i));
  }
}

void ChunkPipeline::BeginAttempt(const UpdateStep& step, absl::Time deadline,
                                 const std::vector<int>& order) {
  supply_.Clear();
  step_ = &step;
  most_updating_ =
      step.staging != nullptr ? std::min(slots_, Staging::kSlots) : slots_;
  // Without parameters that have elements there are no slots.
  ranges_ =
      RangesPerChunk(executor_.parallelism(), std::max(1, most_updating_));
  deadline_ = deadline;
  stopped_ = false;
  error_ = absl::OkStatus();
  requests_.BeginAttempt();
  staged_.ForgetAwaited();
  progress_.BeginAttempt(order);
  if (staged_.kept() == 0) return;
  const int returning = staged_.ReturnAgain(step.parameters);
  updating_.fetch_add(returning, std::memory_order_relaxed);
  meter_.Start(returning);
}

void ChunkPipeline::BeginGradual(const UpdateStep& step,
                                 absl::Span<const ParameterSpec> specs,
                                 absl::Span<const ParameterData> expected,
                                 const std::vector<int>& order) {
  BeginStep(expected, /*tells=*/false);
  BeginAttempt(step, absl::InfiniteFuture(), order);
  supply_.Begin(specs, expected);
}

void ChunkPipeline::Supply(int parameter) {
  std::vector<int> next;
  supply_.Supply(parameter, &next);
  progress_.PushNext(next);
}

void ChunkPipeline::EndSupply() {
  std::vector<int> next;
  supply_.End(&next);
  progress_.PushNext(next);
}

void ChunkPipeline::Hasten(int parameter) {
  std::vector<int> chunks = chunks_.ChunksOf(parameter);
  progress_.Hasten(chunks);
  if (step_ == nullptr || step_->staging == nullptr) return;
  std::erase_if(chunks, [this](int chunk) {
    return !progress_.IsMissing(chunk) && !staged_.IsUnderWay(chunk);
  });
  staged_.Await(std::move(chunks));
}

bool ChunkPipeline::Advance() {
  ended_before_ = meter_.ended();
  if (TakeStaged()) return false;  // it is told first
  DispatchDue();
  PushMissing();
  while (CanTake() && TakeNext(clock_.Now()) == Look::kTaken) {
    DispatchDue();
    PushMissing();
  }
  // First whether any runs: what it leaves to be taken is there by then.
  const bool running = meter_.running() > 0;
  TakeStaged();
  if (running || meter_.running() > 0) return false;
  if (stopped_) return true;
  return requests_.pushed() == 0 && (missing() == 0 || !error_.ok());
}

bool ChunkPipeline::Wait(absl::Time deadline) {
  if (CanTake()) {
    const Look look = WaitForChunk(deadline);
    if (look == Look::kTaken || look == Look::kWoken) return true;
    if (look == Look::kNothing) {
      // Copies are to be looked at, whatever is ready.
      return staged_.copying() && clock_.Now() < deadline;
    }
  }
  // Tasks end on their own, and copies when the device answers: memory that
  // they use cannot be left before, whatever the deadline.
  if (staged_.copying()) {
    meter_.WaitForEnd(ended_before_, kCopyLook);
  } else {
    meter_.WaitForEnd(ended_before_);
  }
  return true;
}

// For one that can be taken, or until copies are to be looked at.
ChunkPipeline::Look ChunkPipeline::WaitForChunk(absl::Time deadline) {
  meter_.Cut(StepMeter::Bucket::kOther);
  const absl::Time next =
      staged_.copying() ? clock_.Now() + kCopyLook : absl::InfiniteFuture();
  const Look look = TakeNext(std::min(deadline, next));
  if (look != Look::kTaken) meter_.Cut(StepMeter::Bucket::kOther);
  return look;
}

void ChunkPipeline::WaitForTasks() {
  bool running = true;
  while (running) {
    const int64_t ended = meter_.ended();
    running = meter_.running() > 0;
    for (EndedCopies& each : staged_.TakeReturned()) {
      each.staged.update->LeaveSlot();
      meter_.End();
    }
    for (EndedCopies& each : staged_.TakeArrived()) {
      each.staged.update->GiveUp();
      meter_.End();
    }
    if (running) meter_.WaitForEnd(ended, kCopyLook);
  }
  supply_.ReleaseHeld();
}

void ChunkPipeline::Stop(absl::Status error) {
  stopped_ = true;
  Fail(std::move(error));
}

// Faults can leave a queue with no slots but those of our own kernels, fewer
// than it was opened with. It says so at once; then a kernel has to end first.
ChunkPipeline::Look ChunkPipeline::TakeNext(absl::Time deadline) {
  const int64_t ended = meter_.ended();
  const bool updating = updating_.load(std::memory_order_acquire) > 0;
  absl::StatusOr<ChunkReady> ready = requests_.Next(deadline);
  if (!updating && absl::IsFailedPrecondition(ready.status())) {
    if (const std::optional<int> chunk = supply_.SendBackLast()) {
      progress_.SetRefused(*chunk);
      return Look::kTaken;  // its slot may be what is missing
    }
  }
  const bool is_blocked =
      updating && absl::IsFailedPrecondition(ready.status());
  ended_when_blocked_ = is_blocked ? ended : -1;
  if (is_blocked) return Look::kBlocked;
  if (absl::IsAborted(ready.status())) return Look::kWoken;
  if (absl::IsDeadlineExceeded(ready.status())) return Look::kNothing;
  ready.ok() ? Take(*std::move(ready)) : Stop(ready.status());
  return Look::kTaken;
}

bool ChunkPipeline::CanTake() const {
  if (meter_.running() > 0 && meter_.ended() == ended_when_blocked_) {
    return false;
  }
  if (stopped_ || requests_.pushed() == 0) return false;
  if (staged_.HoldsBack()) return false;
  // Pairs with the release in the task: a chunk not counted holds no pin.
  const int updating = updating_.load(std::memory_order_acquire);
  if (!supply_.is_gradual()) return updating < most_updating_;
  return updating + supply_.held() < slots_ &&
         (supply_.due_pushed() || supply_.early() < slots_ - 1);
}

void ChunkPipeline::PushMissing() {
  while (progress_.has_next() && error_.ok() && !stopped_) {
    const int chunk = progress_.next();
    // An early one is fetched for a slot that it can have at once: what is due
    // meanwhile does not wait behind many of them.
    if (!supply_.IsDue(chunk) &&
        requests_.pushed() + supply_.held() >= slots_) {
      return;
    }
    if (supply_.IsVoid(chunk)) {
      progress_.SkipNext();
      continue;
    }
    const Access access =
        chunks_.contents(chunk).fresh ? Access::kOverwrite : Access::kUpdate;
    absl::Status status =
        requests_.Push(chunk, chunks_.tensor(chunk), access, deadline_);
    // A queue that is full is asked again after a Next. One that is full and
    // has nothing of ours would never take it.
    const bool is_full = absl::IsUnavailable(status) && requests_.pushed() > 0;
    if (is_full) return;
    if (!status.ok()) return Fail(std::move(status));
    progress_.SetPushed();
    supply_.OnPushed(chunk);
  }
}

void ChunkPipeline::Take(ChunkReady ready) {
  meter_.Cut(StepMeter::BucketOf(ready.cause));
  if (ready.chunk == ChunkReady::kOfAFetch) {
    ChunkRequests::Drop(std::move(ready));
  } else if (ready.pin.ok() && supply_.is_gradual()) {
    TakeGradual(ready.chunk, *std::move(ready.pin));
  } else if (ready.pin.ok()) {
    progress_.SetDone(ready.chunk);
    Dispatch(ready.chunk, *std::move(ready.pin));
  } else {
    supply_.OnTaken(ready.chunk);
    progress_.SetRefused(ready.chunk);
    TakeRefusal(ready.chunk, ready.is_current, ready.pin.status());
  }
}

// One of a gradual step waits for its gradients, or for its turn. The last slot
// is for those that are due.
void ChunkPipeline::TakeGradual(int chunk, Pin pin) {
  supply_.OnTaken(chunk);
  if (supply_.IsDue(chunk) || supply_.early() < slots_ - 1) {
    return supply_.Hold(chunk, std::move(pin));
  }
  pin.ReleaseUnchanged();
  supply_.SendBack(chunk);
  progress_.SetRefused(chunk);
}

void ChunkPipeline::DispatchDue() {
  while (!stopped_ &&
         updating_.load(std::memory_order_acquire) < most_updating_) {
    std::optional<GradientSupply::HeldPin> due = supply_.TakeDue();
    if (!due.has_value()) return;
    progress_.SetDone(due->chunk);
    if (supply_.IsVoid(due->chunk)) {
      due->pin.ReleaseUnchanged();
    } else {
      Dispatch(due->chunk, std::move(due->pin));
    }
  }
}

void ChunkPipeline::TakeRefusal(int chunk, bool is_current,
                                const absl::Status& status) {
  if (is_current || absl::IsDataLoss(status)) {
    Fail(Reworded(status,
                  absl::StrCat(Named(chunk, chunks_), status.message())));
  } else {
    progress_.PushAgain(chunk);  // a request of an abandoned attempt
  }
}

void ChunkPipeline::Dispatch(int chunk, Pin pin) {
  absl::StatusOr<std::unique_ptr<StagedChunk>> staged = Stage(chunk);
  if (!staged.ok()) {
    pin.ReleaseUnchanged();
    progress_.SetLost(chunk);
    return Fail(staged.status());
  }
  StagedUpdate update = {
      chunk, std::make_shared<ChunkUpdate>(chunks_.chunk(chunk), std::move(pin),
                                           chunks_.contents(chunk), *step_,
                                           ranges_, *std::move(staged))};
  chunks_.SetUpdated(chunk, step_->parameters);
  stepped_.OnUpdate(chunk, update.update);
  updating_.fetch_add(1, std::memory_order_relaxed);
  if (update.update->staged() != nullptr) {
    meter_.Start(1);
    staged_.AddArriving(std::move(update));
  } else {
    RunRanges(update);
  }
}

void ChunkPipeline::RunRanges(const StagedUpdate& update) {
  meter_.Start(ranges_);
  const bool is_staged = update.update->staged() != nullptr;
  // The customer's thread may wait in the queue for another chunk, and has to
  // tell of this one, or to begin its copies back.
  const bool wakes = is_staged || stepped_.tells();
  for (int range = 0; range < ranges_; ++range) {
    executor_.Run([this, update, is_staged, wakes, range] {
      if (update.update->RunRange(range)) {
        if (is_staged) {
          meter_.Start(1);
          staged_.AddReturning(update);
        } else {
          updating_.fetch_sub(1, std::memory_order_release);
        }
        if (wakes) requests_.Wake();
      }
      meter_.End();
    });
  }
}

absl::StatusOr<std::unique_ptr<StagedChunk>> ChunkPipeline::Stage(
    int chunk) const {
  if (step_->staging == nullptr) return nullptr;
  return StagedChunk::Fetch(*step_->staging, chunks_.chunk(chunk),
                            step_->parameters);
}

bool ChunkPipeline::TakeStaged() {
  bool is_there = false;
  for (EndedCopies& each : staged_.TakeReturned()) {
    const bool is_kept = !each.status.ok() && !absl::IsDataLoss(each.status) &&
                         !supply_.is_gradual() && staged_.Keep(each.staged);
    if (!is_kept) each.staged.update->LeaveSlot();
    updating_.fetch_sub(1, std::memory_order_relaxed);
    is_there |= staged_.End(each.staged.chunk);
    meter_.End();
    if (each.status.ok()) continue;
    const std::string why =
        absl::StrCat(Named(each.staged.chunk, chunks_),
                     "its state was stepped, its parameters were not: ",
                     each.status.message());
    // Nothing else has the parameters of this step, nor may take their slots.
    if (is_kept) {
      Stop(Reworded(each.status, why));
    } else {
      stepped_.OnLost(each.staged.chunk);
      Fail(Reworded(each.status, absl::StatusCode::kDataLoss, why));
    }
  }
  for (EndedCopies& each : staged_.TakeArrived()) {
    if (each.status.ok()) {
      RunRanges(each.staged);
    } else {
      TakeNotArrived(each.staged, each.status);
    }
    meter_.End();
  }
  return is_there;
}

void ChunkPipeline::TakeNotArrived(const StagedUpdate& staged,
                                   const absl::Status& status) {
  staged.update->GiveUp();
  updating_.fetch_sub(1, std::memory_order_relaxed);
  staged.update->Restore(chunks_.contents(staged.chunk));
  progress_.SetLost(staged.chunk);
  stepped_.OnLost(staged.chunk);
  staged_.End(staged.chunk);
  Fail(Reworded(status,
                absl::StrCat(Named(staged.chunk, chunks_), status.message())));
}

void ChunkPipeline::Fail(absl::Status error) {
  if (error_.ok() || (absl::IsDataLoss(error) && !absl::IsDataLoss(error_))) {
    error_ = std::move(error);
  }
  // There is no other attempt at a gradual step.
  if (!supply_.is_gradual()) return;
  stopped_ = true;
  for (const int chunk : supply_.ReleaseHeld()) progress_.SetRefused(chunk);
}

}  // namespace terrace
