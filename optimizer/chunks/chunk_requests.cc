#include "optimizer/chunks/chunk_requests.h"

#include "base/check.h"
#include "base/status_macros.h"

namespace terrace {
namespace {

// A tag says whether it is a fetch outside of steps, else which attempt pushed
// which chunk: 1 + 31 + 32 bits.
constexpr uint64_t kFetchTag = uint64_t{1} << 63;

uint64_t TagOf(uint64_t attempt, int chunk) {
  return (attempt << 32 & ~kFetchTag) | static_cast<uint32_t>(chunk);
}

}  // namespace

absl::Status ChunkRequests::BeginStep(int64_t step) {
  return queue_ == nullptr ? absl::OkStatus() : queue_->BeginStep(step);
}

absl::Status ChunkRequests::BeginStepAgain(int64_t step) {
  TERRACE_RETURN_IF_ERROR(BeginStep(step));
  TERRACE_RETURN_IF_ERROR(AbortStep());
  return BeginStep(step);
}

absl::Status ChunkRequests::CommitStep(int64_t step) {
  return queue_ == nullptr ? absl::OkStatus() : queue_->CommitStep({step});
}

absl::Status ChunkRequests::AbortStep() {
  return queue_ == nullptr ? absl::OkStatus() : queue_->AbortStep();
}

absl::Status ChunkRequests::Push(int chunk, TensorId tensor, Access access,
                                 absl::Time deadline) {
  const Want want{tensor, access};
  TERRACE_RETURN_IF_ERROR(queue_->Push({&want, 1}, TagOf(attempt_, chunk),
                                       clock_.ToWall(deadline)));
  ++pushed_;
  return absl::OkStatus();
}

absl::StatusOr<ChunkReady> ChunkRequests::Next(absl::Time deadline) {
  TERRACE_ASSIGN_OR_RETURN(Ready ready, queue_->Next(clock_.ToWall(deadline)));
  ChunkReady chunk;
  chunk.cause = ready.cause;
  if ((ready.tag & kFetchTag) == 0) {
    chunk.chunk = static_cast<int>(ready.tag & 0xFFFFFFFF);
    chunk.is_current = ready.tag == TagOf(attempt_, chunk.chunk);
    TERRACE_CHECK(pushed_ > 0);
    --pushed_;
  }
  if (ready.pins.ok()) {
    chunk.pin = std::move(ready.pins->front());
  } else {
    chunk.pin = ready.pins.status();
  }
  return chunk;
}

absl::StatusOr<Pin> ChunkRequests::Fetch(TensorId tensor, Access access,
                                         absl::Time deadline) {
  TERRACE_CHECK(pushed_ == 0);
  const uint64_t tag = kFetchTag | ++fetches_;
  const Want want{tensor, access};
  TERRACE_RETURN_IF_ERROR(
      queue_->Push({&want, 1}, tag, clock_.ToWall(deadline)));
  while (true) {
    absl::StatusOr<Ready> ready = queue_->Next(clock_.ToWall(deadline));
    if (absl::IsAborted(ready.status())) continue;  // a Wake of a step before
    TERRACE_RETURN_IF_ERROR(ready.status());
    if (ready->tag == tag) {
      TERRACE_RETURN_IF_ERROR(ready->pins.status());
      return std::move(ready->pins->front());
    }
    if (ready->pins.ok()) ready->pins->front().ReleaseUnchanged();
  }
}

void ChunkRequests::Drop(ChunkReady ready) {
  if (ready.pin.ok()) ready.pin->ReleaseUnchanged();
}

}  // namespace terrace
