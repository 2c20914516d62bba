#include "runtime/optimizer/chunk_update.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/convert.h"
#include "runtime/base/check.h"

namespace terrace {
namespace {

void Zero(float* values, int64_t count) {
  std::memset(values, 0, static_cast<size_t>(count) * sizeof(float));
}

}  // namespace

ChunkUpdate::ChunkUpdate(const Chunk& chunk, Pin pin, bool fresh,
                         const UpdateStep& step, int ranges)
    : chunk_(chunk),
      pin_(std::move(pin)),
      fresh_(fresh),
      step_(step),
      ranges_(ranges),
      payload_(pin_.data().data()),
      left_(ranges) {
  TERRACE_CHECK(ranges >= 1);
  TERRACE_CHECK(static_cast<int64_t>(pin_.data().size()) ==
                chunk.payload_bytes());
}

bool ChunkUpdate::RunRange(int index) {
  // Whole granules, so that two ranges never write the same cache line.
  const int64_t granules = (chunk_.count + kChunkGranule - 1) / kChunkGranule;
  const int64_t begin = granules * index / ranges_ * kChunkGranule;
  const int64_t end =
      std::min(granules * (index + 1) / ranges_ * kChunkGranule, chunk_.count);
  // The first segment that ends after `begin`.
  auto segment = std::partition_point(
      chunk_.segments.begin(), chunk_.segments.end(),
      [&](const Segment& s) { return s.chunk_offset + s.count <= begin; });
  for (; segment != chunk_.segments.end() && segment->chunk_offset < end;
       ++segment) {
    UpdateSegment(*segment, begin, end);
  }
  if (fresh_ && index == ranges_ - 1) {
    const int64_t padding = chunk_.stride() - chunk_.count;
    if (chunk_.has_master()) Zero(chunk_.master(payload_) + end, padding);
    Zero(chunk_.first_moment(payload_) + end, padding);
    Zero(chunk_.second_moment(payload_) + end, padding);
  }
  // Acquire and release: the last range sees, and publishes, what all wrote.
  if (left_.fetch_sub(1, std::memory_order_acq_rel) != 1) return false;
  pin_.Release();
  return true;
}

void ChunkUpdate::UpdateSegment(const Segment& segment, int64_t begin,
                                int64_t end) {
  const int64_t from = std::max(begin, segment.chunk_offset);
  const int64_t count =
      std::min(end, segment.chunk_offset + segment.count) - from;
  const int64_t element =
      segment.parameter_offset + from - segment.chunk_offset;
  const ParameterData& data =
      step_.parameters[static_cast<size_t>(segment.parameter)];
  std::byte* parameter = static_cast<std::byte*>(data.parameter) +
                         element * DTypeBytes(chunk_.dtype);
  AdamSpan span = {.parameter = parameter,
                   .parameter_dtype = chunk_.dtype,
                   .gradient_dtype = data.gradient_dtype,
                   .m = chunk_.first_moment(payload_) + from,
                   .v = chunk_.second_moment(payload_) + from,
                   .count = count};
  if (chunk_.has_master()) span.master = chunk_.master(payload_) + from;
  if (fresh_) {
    Zero(span.m, count);
    Zero(span.v, count);
    if (span.master != nullptr) {
      WidenToFloat(chunk_.dtype, reinterpret_cast<const uint16_t*>(parameter),
                   span.master, count);
    }
  }
  if (data.gradient == nullptr) return;
  span.gradient = static_cast<const std::byte*>(data.gradient) +
                  element * DTypeBytes(data.gradient_dtype);
  // Whether results are finite is the caller's affair: non-finite gradients
  // were looked for before the step, if asked.
  AdamUpdate(step_.scalars, step_.gradient_multiplier, span);
}

}  // namespace terrace
