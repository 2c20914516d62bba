#include "optimizer/chunks/chunk_table.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace terrace {

void ChunkTable::Append(std::vector<Chunk> chunks,
                        absl::Span<const TensorId> tensors, size_t parameters) {
  TERRACE_CHECK(tensors.size() == chunks.size());
  first_chunks_.resize(parameters, -1);
  tensors_.insert(tensors_.end(), tensors.begin(), tensors.end());
  for (Chunk& chunk : chunks) {
    for (const Segment& segment : chunk.segments) {
      int& first = first_chunks_[static_cast<size_t>(segment.parameter)];
      if (first < 0) first = size();
    }
    contents_.emplace_back(chunk);
    chunks_.push_back(std::move(chunk));
  }
}

void ChunkTable::Clear() {
  for (size_t i = 0; i < chunks_.size(); ++i) contents_[i].Clear(chunks_[i]);
}

void ChunkTable::SetUpdated(int index,
                            absl::Span<const ParameterData> parameters) {
  ChunkContents& held = contents(index);
  held.fresh = false;
  const std::vector<Segment>& segments = chunk(index).segments;
  for (size_t i = 0; i < segments.size(); ++i) {
    const auto parameter = static_cast<size_t>(segments[i].parameter);
    if (parameters[parameter].gradient != nullptr) {
      held.segments[i] = kHoldsAll;
    }
  }
}

std::vector<bool> ChunkTable::WithGradient(
    absl::Span<const ParameterData> parameters) const {
  std::vector<bool> with(chunks_.size(), false);
  for (size_t i = 0; i < chunks_.size(); ++i) {
    for (const Segment& segment : chunks_[i].segments) {
      const auto parameter = static_cast<size_t>(segment.parameter);
      if (parameters[parameter].gradient != nullptr) with[i] = true;
    }
  }
  return with;
}

std::vector<int> ChunkTable::InOrder(absl::Span<const int> parameters) const {
  constexpr size_t kNever = 0;
  std::vector<size_t> turns(first_chunks_.size(), kNever);
  for (size_t i = 0; i < parameters.size(); ++i) {
    turns[static_cast<size_t>(parameters[i])] = i + 1;
  }
  std::vector<std::pair<size_t, int>> last_turns;
  for (int i = 0; i < size(); ++i) {
    size_t last = kNever;
    for (const Segment& segment : chunk(i).segments) {
      last = std::max(last, turns[static_cast<size_t>(segment.parameter)]);
    }
    if (last != kNever) last_turns.emplace_back(last, i);
  }
  std::sort(last_turns.begin(), last_turns.end());
  std::vector<int> chunks;
  for (const auto& [turn, index] : last_turns) chunks.push_back(index);
  return chunks;
}

std::vector<int> ChunkTable::InOrderOfFirst(
    absl::Span<const int> parameters) const {
  const std::vector<int> backwards(parameters.rbegin(), parameters.rend());
  std::vector<int> chunks = InOrder(backwards);
  std::reverse(chunks.begin(), chunks.end());
  return chunks;
}

std::vector<int> ChunkTable::ChunksOf(int parameter) const {
  const auto has = [parameter](const Segment& segment) {
    return segment.parameter == parameter;
  };
  std::vector<int> found;
  const int first = first_chunks_[static_cast<size_t>(parameter)];
  for (int i = first; i >= 0 && i < size(); ++i) {
    const std::vector<Segment>& segments = chunk(i).segments;
    if (std::none_of(segments.begin(), segments.end(), has)) break;
    found.push_back(i);
  }
  return found;
}

// A parameter's segments are in consecutive chunks, one in each.
std::vector<ChunkPiece> ChunkTable::Pieces(int parameter, int64_t offset,
                                           size_t count) const {
  std::vector<ChunkPiece> pieces;
  const int64_t end = offset + static_cast<int64_t>(count);
  int64_t next = offset;
  for (int i = first_chunks_[static_cast<size_t>(parameter)]; next < end; ++i) {
    const std::vector<Segment>& segments = chunk(i).segments;
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
