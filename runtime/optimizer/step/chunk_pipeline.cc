#include "runtime/optimizer/step/chunk_pipeline.h"

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/check.h"
#include "runtime/base/io_fault.h"
#include "runtime/base/status_macros.h"

namespace terrace {
namespace {

// A tag says whether it is a fetch outside of steps, else which attempt pushed
// which chunk: 1 + 31 + 32 bits.
constexpr uint64_t kFetchTag = uint64_t{1} << 63;

uint64_t MakeTag(uint64_t attempt, int chunk) {
  return (attempt << 32 & ~kFetchTag) | static_cast<uint32_t>(chunk);
}

StepMeter::Bucket BucketOf(WaitCause cause) {
  switch (cause) {
    case WaitCause::kRead:
      return StepMeter::Bucket::kRead;
    case WaitCause::kWriteBack:
      return StepMeter::Bucket::kWrite;
    case WaitCause::kSpace:
      return StepMeter::Bucket::kSpace;
    case WaitCause::kNone:
      break;
  }
  return StepMeter::Bucket::kOther;
}

}  // namespace

void ChunkPipeline::SetQueue(RequestQueue* queue, int slots) {
  TERRACE_CHECK(updating_ == 0 && slots >= 1);
  queue_ = queue;
  slots_ = slots;
  pushed_ = 0;
  for (State& state : states_) {
    if (state == State::kPushed) state = State::kMissing;
  }
}

void ChunkPipeline::AddChunks(absl::Span<const TensorId> tensors) {
  tensors_.insert(tensors_.end(), tensors.begin(), tensors.end());
  TERRACE_CHECK(tensors_.size() == chunks_.size());
  for (size_t i = states_.size(); i < chunks_.size(); ++i) {
    states_.push_back(State::kDone);
    contents_.emplace_back(chunks_[i]);
  }
}

void ChunkPipeline::Clear() {
  TERRACE_CHECK(pushed_ == 0);
  for (size_t i = 0; i < chunks_.size(); ++i) {
    states_[i] = State::kDone;
    contents_[i].Clear(chunks_[i]);
  }
  missing_ = 0;
  stopped_ = false;
  error_ = absl::OkStatus();
}

void ChunkPipeline::BeginStep(const std::vector<bool>& wanted) {
  TERRACE_CHECK(missing_ == 0);
  for (size_t i = 0; i < wanted.size(); ++i) {
    if (!wanted[i]) continue;
    states_[i] = State::kMissing;
    ++missing_;
  }
}

void ChunkPipeline::BeginAttempt(const UpdateStep& step, absl::Time deadline) {
  step_ = &step;
  most_updating_ =
      step.staging != nullptr ? std::min(slots_, Staging::kSlots) : slots_;
  // Without parameters that have elements there are no slots.
  ranges_ =
      RangesPerChunk(executor_.parallelism(), std::max(1, most_updating_));
  deadline_ = deadline;
  ++attempt_;
  stopped_ = false;
  error_ = absl::OkStatus();
  to_push_.clear();
  for (size_t i = 0; i < states_.size(); ++i) {
    if (states_[i] == State::kMissing) to_push_.push_back(static_cast<int>(i));
  }
}

bool ChunkPipeline::Advance() {
  TakeUnstaged();
  PushMissing();
  while (CanTake() && TakeNext(clock_.Now())) PushMissing();
  if (meter_.running() > 0) return false;
  TakeUnstaged();
  if (stopped_) return true;
  return pushed_ == 0 && (missing_ == 0 || !error_.ok());
}

bool ChunkPipeline::Wait(absl::Time deadline) {
  const int64_t ended = meter_.ended();
  if (CanTake()) {
    meter_.Cut(StepMeter::Bucket::kOther);
    if (TakeNext(deadline) || stopped_) return true;
    meter_.Cut(StepMeter::Bucket::kOther);
    if (!blocked_by_kernels_) return false;
  }
  if (meter_.running() > 0) {
    // Tasks end on their own, those that copy when the device answers: memory
    // that they use cannot be left before, whatever the deadline.
    meter_.WaitForEnd(ended, absl::InfiniteFuture());
    return true;
  }
  if (stopped_ || to_push_.empty()) return true;
  // The queue has no room for a request, and none of ours is in it: all we
  // can do is ask again.
  const absl::Time now = clock_.Now();
  if (now >= deadline) return false;
  Mutex mutex;
  CondVar never;
  MutexLock lock(mutex);
  clock_.Await(
      mutex, never, [] { return false; },
      std::min(deadline, now + absl::Milliseconds(1)));
  return true;
}

void ChunkPipeline::Abandon(absl::Status error) {
  stopped_ = true;
  Fail(std::move(error));
}

absl::StatusOr<Pin> ChunkPipeline::Fetch(int chunk, Access access,
                                         absl::Time deadline) {
  TERRACE_CHECK(pushed_ == 0);
  const auto i = static_cast<size_t>(chunk);
  TERRACE_CHECK(access == Access::kOverwrite || !contents_[i].fresh);
  const uint64_t tag = kFetchTag | ++fetches_;
  const Want want{tensors_[i], access};
  TERRACE_RETURN_IF_ERROR(
      queue_->Push({&want, 1}, tag, clock_.ToWall(deadline)));
  while (true) {
    TERRACE_ASSIGN_OR_RETURN(Ready ready,
                             queue_->Next(clock_.ToWall(deadline)));
    if (ready.tag != tag) {
      DropFetched(std::move(ready));
      continue;
    }
    TERRACE_RETURN_IF_ERROR(ready.pins.status());
    return std::move(ready.pins->front());
  }
}

// Of a fetch whose customer gave up at its deadline: nothing was written.
void ChunkPipeline::DropFetched(Ready ready) {
  if (ready.pins.ok()) ready.pins->front().ReleaseUnchanged();
}

// Faults can leave a queue with no slots but those of our own kernels, fewer
// than it was opened with. It says so at once; then a kernel has to end first.
bool ChunkPipeline::TakeNext(absl::Time deadline) {
  const int64_t ended = meter_.ended();
  const bool updating = updating_.load(std::memory_order_acquire) > 0;
  absl::StatusOr<Ready> ready = queue_->Next(clock_.ToWall(deadline));
  blocked_by_kernels_ = updating && absl::IsFailedPrecondition(ready.status());
  ended_when_blocked_ = ended;
  return !blocked_by_kernels_ && Take(std::move(ready));
}

bool ChunkPipeline::CanTake() const {
  if (blocked_by_kernels_ && meter_.running() > 0 &&
      meter_.ended() == ended_when_blocked_) {
    return false;
  }
  // Pairs with the release in the task: a chunk not counted holds no pin.
  return !stopped_ && pushed_ > 0 &&
         updating_.load(std::memory_order_acquire) < most_updating_;
}

void ChunkPipeline::PushMissing() {
  while (!to_push_.empty() && error_.ok() && !stopped_) {
    const int chunk = to_push_.front();
    const auto i = static_cast<size_t>(chunk);
    const Want want{tensors_[i],
                    contents_[i].fresh ? Access::kOverwrite : Access::kUpdate};
    absl::Status status = queue_->Push({&want, 1}, MakeTag(attempt_, chunk),
                                       clock_.ToWall(deadline_));
    if (absl::IsUnavailable(status)) return;  // full; again after a Next
    if (!status.ok()) return Fail(std::move(status));
    to_push_.pop_front();
    states_[i] = State::kPushed;
    ++pushed_;
  }
}

// False: nothing was ready, or the queue gives nothing more.
bool ChunkPipeline::Take(absl::StatusOr<Ready> ready) {
  if (!ready.ok()) {
    if (!absl::IsDeadlineExceeded(ready.status())) Abandon(ready.status());
    return false;
  }
  meter_.Cut(BucketOf(ready->cause));
  if ((ready->tag & kFetchTag) != 0) {
    DropFetched(*std::move(ready));
    return true;
  }
  const int chunk = static_cast<int>(ready->tag & 0xFFFFFFFF);
  const auto i = static_cast<size_t>(chunk);
  TERRACE_CHECK(i < states_.size() && states_[i] == State::kPushed);
  --pushed_;
  if (ready->pins.ok()) {
    states_[i] = State::kDone;
    --missing_;
    Dispatch(chunk, std::move(ready->pins->front()));
    return true;
  }
  states_[i] = State::kMissing;
  const absl::Status& status = ready->pins.status();
  if (ready->tag == MakeTag(attempt_, chunk) || absl::IsDataLoss(status)) {
    Fail(Reworded(status, absl::StrCat("chunk ", chunk, " of ", chunks_.size(),
                                       ": ", status.message())));
  } else {
    to_push_.push_back(chunk);  // a request of an abandoned attempt
  }
  return true;
}

void ChunkPipeline::Dispatch(int chunk, Pin pin) {
  const auto i = static_cast<size_t>(chunk);
  absl::StatusOr<std::unique_ptr<StagedChunk>> staged = Stage(chunk);
  if (!staged.ok()) {
    pin.ReleaseUnchanged();
    states_[i] = State::kMissing;
    ++missing_;
    return Fail(staged.status());
  }
  auto update =
      std::make_shared<ChunkUpdate>(chunks_[i], std::move(pin), contents_[i],
                                    *step_, ranges_, *std::move(staged));
  SetUpdated(chunk);
  updating_.fetch_add(1, std::memory_order_relaxed);
  meter_.Start(ranges_);
  for (int range = 0; range < ranges_; ++range) {
    executor_.Run([this, chunk, update, range] {
      if (update->RunRange(range)) {
        if (!update->arrived().ok() || !update->returned().ok()) {
          MutexLock lock(mutex_);
          unstaged_.push_back({chunk, update});
        }
        updating_.fetch_sub(1, std::memory_order_release);
      }
      meter_.End();
    });
  }
}

absl::StatusOr<std::unique_ptr<StagedChunk>> ChunkPipeline::Stage(
    int chunk) const {
  if (step_->staging == nullptr) return nullptr;
  const auto i = static_cast<size_t>(chunk);
  return StagedChunk::Fetch(*step_->staging, chunks_[i], step_->parameters);
}

// What the chunk holds once its update is done.
void ChunkPipeline::SetUpdated(int chunk) {
  const auto i = static_cast<size_t>(chunk);
  ChunkContents& contents = contents_[i];
  contents.fresh = false;
  for (size_t j = 0; j < contents.segments.size(); ++j) {
    const auto parameter =
        static_cast<size_t>(chunks_[i].segments[j].parameter);
    if (step_->parameters[parameter].gradient != nullptr) {
      contents.segments[j] = kHoldsAll;
    }
  }
}

void ChunkPipeline::TakeUnstaged() {
  std::vector<Unstaged> unstaged;
  {
    MutexLock lock(mutex_);
    unstaged.swap(unstaged_);
  }
  for (const Unstaged& one : unstaged) {
    const auto i = static_cast<size_t>(one.chunk);
    const std::string which =
        absl::StrCat("chunk ", one.chunk, " of ", chunks_.size(), ": ");
    if (!one.update->arrived().ok()) {
      one.update->Restore(contents_[i]);
      states_[i] = State::kMissing;
      ++missing_;
      const absl::Status& status = one.update->arrived();
      Fail(Reworded(status, absl::StrCat(which, status.message())));
    } else {
      // Nothing else has the parameters of this step.
      Fail(absl::DataLossError(absl::StrCat(
          which, "its state was stepped, its parameters were not: ",
          one.update->returned().message())));
    }
  }
}

void ChunkPipeline::Fail(absl::Status error) {
  if (error_.ok() || (absl::IsDataLoss(error) && !absl::IsDataLoss(error_))) {
    error_ = std::move(error);
  }
}

}  // namespace terrace
