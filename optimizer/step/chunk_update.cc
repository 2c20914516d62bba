#include "optimizer/step/chunk_update.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "kernels/convert.h"

namespace terrace {
namespace {

void Zero(float* values, int64_t count) {
  std::memset(values, 0, static_cast<size_t>(count) * sizeof(float));
}

}  // namespace

int RangesPerChunk(int parallelism, int slots) {
  return std::max(1, (2 * parallelism + slots - 1) / slots);
}

ChunkUpdate::ChunkUpdate(const Chunk& chunk, Pin pin,
                         const ChunkContents& contents, const UpdateStep& step,
                         int ranges, std::unique_ptr<StagedChunk> staged)
    : chunk_(chunk),
      pin_(std::move(pin)),
      fresh_(contents.fresh),
      held_(contents.whole() ? std::vector<Held>() : contents.segments),
      step_(step),
      ranges_(ranges),
      payload_(pin_.data().data()),
      left_(ranges),
      staged_(std::move(staged)) {
  TERRACE_CHECK(ranges >= 1);
  TERRACE_CHECK(static_cast<int64_t>(pin_.data().size()) ==
                chunk.payload_bytes());
}

bool ChunkUpdate::RunRange(int index) {
  UpdateRange(index);
  // Acquire and release: the last range sees, and publishes, what all wrote.
  if (left_.fetch_sub(1, std::memory_order_acq_rel) != 1) return false;
  pin_.Release();
  if (staged_ != nullptr) staged_->BeginReturn();
  return true;
}

void ChunkUpdate::UpdateRange(int index) {
  // Whole granules, so that two ranges never write the same cache line.
  const int64_t granules = (chunk_.count + kChunkGranule - 1) / kChunkGranule;
  const int64_t begin = granules * index / ranges_ * kChunkGranule;
  const int64_t end =
      std::min(granules * (index + 1) / ranges_ * kChunkGranule, chunk_.count);
  // The first segment that ends after `begin`.
  const auto first = std::partition_point(
      chunk_.segments.begin(), chunk_.segments.end(),
      [&](const Segment& s) { return s.chunk_offset + s.count <= begin; });
  auto i = static_cast<size_t>(first - chunk_.segments.begin());
  for (; i < chunk_.segments.size() && chunk_.segments[i].chunk_offset < end;
       ++i) {
    UpdateSegment(i, begin, end);
  }
  if (fresh_ && index == ranges_ - 1) {
    const int64_t padding = chunk_.stride() - chunk_.count;
    if (chunk_.has_master()) Zero(chunk_.master(payload_) + end, padding);
    Zero(chunk_.first_moment(payload_) + end, padding);
    Zero(chunk_.second_moment(payload_) + end, padding);
  }
}

void ChunkUpdate::GiveUp() {
  pin_.ReleaseUnchanged();
  staged_.reset();
}

void ChunkUpdate::Restore(ChunkContents& contents) const {
  contents.fresh = fresh_;
  contents.segments = held_;
  if (held_.empty()) {
    contents.segments.assign(chunk_.segments.size(), kHoldsAll);
  }
}

ParameterData ChunkUpdate::DataOf(size_t index) const {
  const Segment& segment = chunk_.segments[index];
  if (staged_ != nullptr && staged_->segment(index).device != nullptr) {
    return staged_->segment(index);
  }
  ParameterData data = step_.parameters[static_cast<size_t>(segment.parameter)];
  if (data.gradient == nullptr) return data;  // neither is looked at
  data.parameter = static_cast<std::byte*>(data.parameter) +
                   segment.parameter_offset * DTypeBytes(chunk_.dtype);
  data.gradient = static_cast<const std::byte*>(data.gradient) +
                  segment.parameter_offset * DTypeBytes(data.gradient_dtype);
  return data;
}

void ChunkUpdate::UpdateSegment(size_t index, int64_t begin, int64_t end) {
  const Segment& segment = chunk_.segments[index];
  const int64_t from = std::max(begin, segment.chunk_offset);
  const int64_t count =
      std::min(end, segment.chunk_offset + segment.count) - from;
  const int64_t element = from - segment.chunk_offset;
  const auto parameter = static_cast<size_t>(segment.parameter);
  const ParameterData data = DataOf(index);
  AdamSpan span = {.parameter_dtype = chunk_.dtype,
                   .gradient_dtype = data.gradient_dtype,
                   .m = chunk_.first_moment(payload_) + from,
                   .v = chunk_.second_moment(payload_) + from,
                   .count = count};
  if (chunk_.has_master()) span.master = chunk_.master(payload_) + from;
  if (data.gradient != nullptr) {
    span.parameter = static_cast<std::byte*>(data.parameter) +
                     element * DTypeBytes(chunk_.dtype);
    span.gradient = static_cast<const std::byte*>(data.gradient) +
                    element * DTypeBytes(data.gradient_dtype);
  }
  if (!held_.empty()) Initialise(index, span);
  if (data.gradient == nullptr) return;
  // Whether results are finite is the caller's affair: non-finite gradients
  // were looked for before the step, if asked.
  AdamUpdate(step_.scalars[parameter], step_.gradient_multiplier, span);
}

void ChunkUpdate::Initialise(size_t index, const AdamSpan& span) const {
  const bool used = span.gradient != nullptr;
  if (fresh_ || (used && (held_[index] & kHoldsMoments) == 0)) {
    Zero(span.m, span.count);
    Zero(span.v, span.count);
  }
  if (span.master == nullptr || (held_[index] & kHoldsMaster) != 0) return;
  if (used) {
    WidenToFloat(chunk_.dtype, static_cast<const uint16_t*>(span.parameter),
                 span.master, span.count);
  } else if (fresh_) {
    Zero(span.master, span.count);
  }
}

}  // namespace terrace
