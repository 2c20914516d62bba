// The state outside of steps: who may have it, counters, more parameters.
#include <algorithm>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "runtime/optimizer/chunked_optimizer.h"

namespace terrace {
namespace {

// How long AddParameters waits for others to make room, and whoever could not
// have a new window for the old one.
constexpr absl::Duration kOpenTimeout = absl::Seconds(60);

}  // namespace

// A forked child has none of the threads that anything here waits for.
absl::Status ChunkedOptimizer::CheckUsable() const {
  if (IsOwnProcess()) return poison_;
  return absl::CancelledError(absl::StrCat("optimizer '", options_.name,
                                           "' belongs to process ", process_,
                                           "; a forked child cannot use it"));
}

// Only a forked child's runtime has none, and that refuses everything.
absl::StatusOr<int64_t> ChunkedOptimizer::Budget() const {
  const int64_t bytes = runtime_.GetStats().host_budget_bytes;
  if (bytes == 0) {
    const absl::Status refusal = runtime_.Unregister(TensorId());
    if (absl::IsCancelled(refusal)) return refusal;
  }
  return bytes;
}

absl::Status ChunkedOptimizer::CheckFree(absl::string_view what) const {
  TERRACE_RETURN_IF_ERROR(CheckUsable());
  if (!reading_ && !writing_) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      what, " while the state is ", reading_ ? "read" : "written"));
}

absl::Status ChunkedOptimizer::CheckQuiet(absl::string_view what) const {
  TERRACE_RETURN_IF_ERROR(CheckFree(what));
  if (phase_ == Phase::kIdle && pipeline_.pushed() == 0) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      absl::StrCat(what, " while a step is running or has requests under way"));
}

absl::Status ChunkedOptimizer::CheckComplete(absl::string_view what) const {
  TERRACE_RETURN_IF_ERROR(CheckQuiet(what));
  if (!incomplete_) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(what, " while step ", step_ + 1, " is incomplete"));
}

absl::Status ChunkedOptimizer::CheckLoaded(absl::string_view what) const {
  if (!half_loaded_) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      what, ": the last load of the state ended half-way; load it again"));
}

absl::Status ChunkedOptimizer::CheckRange(int parameter, StateKind kind,
                                          int64_t offset, size_t count) const {
  if (parameter < 0 || static_cast<size_t>(parameter) >= specs_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "there is no parameter ", parameter, " of ", specs_.size()));
  }
  const ParameterSpec& spec = specs_[static_cast<size_t>(parameter)];
  if (offset < 0 || offset > spec.count ||
      static_cast<int64_t>(count) > spec.count - offset) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter '", spec.name, "' has ", spec.count,
        " elements, not those from ", offset, " on, ", count, " of them"));
  }
  if (kind == StateKind::kMaster && spec.dtype == DType::kFloat32) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter '", spec.name, "' is fp32 and has no master of its own"));
  }
  return absl::OkStatus();
}

absl::Status ChunkedOptimizer::AddParameters(
    std::vector<ParameterSpec> parameters) {
  TERRACE_RETURN_IF_ERROR(CheckComplete("parameters cannot be added"));
  std::vector<ParameterSpec> specs = specs_;
  for (ParameterSpec& spec : parameters) specs.push_back(std::move(spec));
  TERRACE_ASSIGN_OR_RETURN(const int64_t budget_bytes, Budget());
  TERRACE_ASSIGN_OR_RETURN(
      ChunkPlan added,
      PlanChunks(specs, options_, budget_bytes, chunks_, specs_.size()));
  std::vector<TensorId> tensors;
  // Their room goes back when the addition fails, and their names are free.
  // Nobody knows them, so only a closed runtime can refuse it.
  absl::Cleanup forget = [this, &tensors] {
    for (TensorId id : tensors) runtime_.Unregister(id).IgnoreError();
  };
  for (const Chunk& chunk : added.chunks) {
    TERRACE_ASSIGN_OR_RETURN(
        TensorId tensor,
        runtime_.Register(
            {.name = absl::StrCat(options_.name, "/chunk",
                                  chunks_.size() + tensors.size()),
             .size_bytes = chunk.payload_bytes(),
             .global_offset = chunk.first}));
    tensors.push_back(tensor);
  }
  if (added.plan.slots != plan_.slots ||
      added.plan.chunk_bytes != plan_.chunk_bytes) {
    const absl::Time deadline = runtime_.clock().Now() + kOpenTimeout;
    TERRACE_RETURN_IF_ERROR(OpenQueue(added.plan, deadline));
  }
  std::move(forget).Cancel();
  first_chunks_.resize(specs.size(), -1);
  for (size_t i = 0; i < added.chunks.size(); ++i) {
    for (const Segment& segment : added.chunks[i].segments) {
      int& first = first_chunks_[static_cast<size_t>(segment.parameter)];
      if (first < 0) first = static_cast<int>(chunks_.size() + i);
    }
  }
  for (Chunk& chunk : added.chunks) chunks_.push_back(std::move(chunk));
  pipeline_.AddChunks(tensors);
  specs_ = std::move(specs);
  plan_ = added.plan;
  parameter_steps_.resize(specs_.size(), 0);
  masters_written_.resize(specs_.size(), 0);
  return absl::OkStatus();
}

// Replaces the queue. On an error the window is as it was before; if not even
// that can be had again, the optimizer is of no more use and says why.
absl::Status ChunkedOptimizer::OpenQueue(const OptimizerPlan& plan,
                                         absl::Time deadline) {
  const auto open = [this](const OptimizerPlan& wanted, absl::Time until) {
    queue_.reset();
    auto queue =
        runtime_.OpenQueue(wanted.chunk_bytes, static_cast<int>(wanted.slots),
                           runtime_.clock().ToWall(until));
    if (!queue.ok()) return queue.status();
    queue_ = *std::move(queue);
    pipeline_.SetQueue(queue_.get(), static_cast<int>(wanted.slots));
    return absl::OkStatus();
  };
  const absl::Status status = open(plan, deadline);
  if (!status.ok() && plan_.slots > 0) {
    // The first may have waited until its deadline.
    poison_ = open(plan_, runtime_.clock().Now() + kOpenTimeout);
  }
  return status;
}

absl::Status ChunkedOptimizer::Reset(Time deadline) {
  TERRACE_RETURN_IF_ERROR(CheckFree("an optimizer cannot be reset"));
  if (phase_ != Phase::kIdle) {
    return absl::FailedPreconditionError(
        "an optimizer cannot be reset while a step is running");
  }
  // A new queue: requests that an incomplete step left behind end with the
  // old.
  if (pipeline_.pushed() > 0) {
    TERRACE_RETURN_IF_ERROR(
        OpenQueue(plan_, runtime_.clock().FromWall(deadline)));
  }
  pipeline_.Clear();
  half_loaded_ = false;
  incomplete_ = false;
  has_fingerprint_ = false;
  step_ = 0;
  std::fill(parameter_steps_.begin(), parameter_steps_.end(), 0);
  std::fill(masters_written_.begin(), masters_written_.end(), 0);
  return absl::OkStatus();
}

absl::Status ChunkedOptimizer::ForgetState(int parameter) {
  TERRACE_RETURN_IF_ERROR(CheckComplete("state cannot be forgotten"));
  TERRACE_RETURN_IF_ERROR(CheckLoaded("state cannot be forgotten"));
  TERRACE_RETURN_IF_ERROR(CheckRange(parameter, StateKind::kFirstMoment, 0, 0));
  const auto index = static_cast<size_t>(parameter);
  for (const Piece& piece :
       Pieces(parameter, 0, static_cast<size_t>(specs_[index].count))) {
    const Chunk& chunk = chunks_[static_cast<size_t>(piece.chunk)];
    pipeline_.contents(piece.chunk).Forget(chunk, piece.segment);
  }
  masters_written_[index] = 0;
  parameter_steps_[index] = 0;
  return absl::OkStatus();
}

absl::Status ChunkedOptimizer::SetSteps(
    int64_t step, absl::Span<const int64_t> parameter_steps) {
  TERRACE_RETURN_IF_ERROR(CheckComplete("steps cannot be set"));
  TERRACE_RETURN_IF_ERROR(CheckLoaded("steps cannot be set"));
  return AssignSteps(step, parameter_steps);
}

absl::Status ChunkedOptimizer::AssignSteps(
    int64_t step, absl::Span<const int64_t> parameter_steps) {
  if (parameter_steps.size() != specs_.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("steps of ", parameter_steps.size(),
                     " parameters given, the optimizer has ", specs_.size()));
  }
  if (step < 0) {
    return absl::InvalidArgumentError(absl::StrCat("step is ", step));
  }
  for (size_t i = 0; i < specs_.size(); ++i) {
    if (parameter_steps[i] >= 0) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        "step of parameter '", specs_[i].name, "' is ", parameter_steps[i]));
  }
  step_ = step;
  parameter_steps_.assign(parameter_steps.begin(), parameter_steps.end());
  return absl::OkStatus();
}

// A parameter's segments are in consecutive chunks, one in each.
std::vector<ChunkedOptimizer::Piece> ChunkedOptimizer::Pieces(
    int parameter, int64_t offset, size_t count) const {
  std::vector<Piece> pieces;
  const int64_t end = offset + static_cast<int64_t>(count);
  int64_t next = offset;
  for (int i = first_chunks_[static_cast<size_t>(parameter)]; next < end; ++i) {
    const std::vector<Segment>& segments =
        chunks_[static_cast<size_t>(i)].segments;
    // They are in the order of their parameters, and may be many.
    const auto segment = std::lower_bound(
        segments.begin(), segments.end(), parameter,
        [](const Segment& s, int wanted) { return s.parameter < wanted; });
    const int64_t segment_end = segment->parameter_offset + segment->count;
    if (segment_end <= next) continue;
    const int64_t piece_end = std::min(segment_end, end);
    pieces.push_back(
        {.chunk = i,
         .segment = static_cast<size_t>(segment - segments.begin()),
         .chunk_offset =
             segment->chunk_offset + next - segment->parameter_offset,
         .range_offset = next - offset,
         .count = piece_end - next});
    next = piece_end;
  }
  return pieces;
}

}  // namespace terrace
