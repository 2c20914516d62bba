// Writes of the state, outside of steps.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "runtime/optimizer/chunked_optimizer.h"
#include "runtime/optimizer/state/state_array.h"

namespace terrace {
namespace {

struct Given {
  OffloadedOptimizer::StateKind kind;
  absl::Span<const float> values;
};

std::array<Given, 3> ByKind(const StateValues& values) {
  using Kind = OffloadedOptimizer::StateKind;
  return {{{Kind::kMaster, values.master},
           {Kind::kFirstMoment, values.first_moment},
           {Kind::kSecondMoment, values.second_moment}}};
}

// Those of `count` elements from `offset` on.
StateValues Part(const StateValues& values, int64_t offset, int64_t count) {
  const auto part = [&](absl::Span<const float> all) {
    if (all.empty()) return all;
    return all.subspan(static_cast<size_t>(offset), static_cast<size_t>(count));
  };
  return {part(values.master), part(values.first_moment),
          part(values.second_moment)};
}

size_t FloatBytes(int64_t count) {
  return static_cast<size_t>(count) * sizeof(float);
}

}  // namespace

class ChunkedOptimizer::Writer final : public StateWriter {
 public:
  explicit Writer(ChunkedOptimizer& optimizer)
      : optimizer_(optimizer), held_(optimizer.pipeline_) {
    optimizer_.writing_ = true;
    optimizer_.half_loaded_ = true;
  }
  ~Writer() override {
    if (!committed_) optimizer_.writing_ = false;
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  absl::Status Write(int parameter, int64_t offset, const StateValues& values,
                     Time deadline) override {
    TERRACE_RETURN_IF_ERROR(CheckOpen());
    return optimizer_.WriteRange(
        held_, parameter, offset, values,
        optimizer_.runtime_.clock().FromWall(deadline));
  }

  absl::Status Commit(int64_t step,
                      absl::Span<const int64_t> parameter_steps) override {
    TERRACE_RETURN_IF_ERROR(CheckOpen());
    TERRACE_RETURN_IF_ERROR(optimizer_.CheckMasters());
    TERRACE_RETURN_IF_ERROR(optimizer_.AssignSteps(step, parameter_steps));
    held_.Release();
    committed_ = true;
    optimizer_.writing_ = false;
    optimizer_.half_loaded_ = false;
    return absl::OkStatus();
  }

 private:
  absl::Status CheckOpen() const {
    TERRACE_RETURN_IF_ERROR(optimizer_.CheckUsable());
    if (!committed_) return absl::OkStatus();
    return absl::FailedPreconditionError("the load was committed");
  }

  ChunkedOptimizer& optimizer_;
  HeldChunks held_;
  bool committed_ = false;
};

absl::StatusOr<std::unique_ptr<StateWriter>> ChunkedOptimizer::OpenStateWriter(
    Time deadline) {
  TERRACE_RETURN_IF_ERROR(Reset(deadline));
  return std::make_unique<Writer>(*this);
}

absl::Status ChunkedOptimizer::WriteState(int parameter, StateKind kind,
                                          int64_t offset,
                                          absl::Span<const float> values,
                                          Time deadline) {
  TERRACE_RETURN_IF_ERROR(CheckComplete("state cannot be written"));
  TERRACE_RETURN_IF_ERROR(CheckLoaded("state cannot be written"));
  StateValues given;
  (kind == StateKind::kMaster        ? given.master
   : kind == StateKind::kFirstMoment ? given.first_moment
                                     : given.second_moment) = values;
  TERRACE_RETURN_IF_ERROR(CheckRange(parameter, kind, offset, values.size()));
  HeldChunks held(pipeline_);
  return WriteRange(held, parameter, offset, given,
                    runtime_.clock().FromWall(deadline));
}

absl::Status ChunkedOptimizer::WriteRange(HeldChunks& held, int parameter,
                                          int64_t offset,
                                          const StateValues& values,
                                          absl::Time deadline) {
  TERRACE_RETURN_IF_ERROR(
      CheckRange(parameter, StateKind::kFirstMoment, offset, 0));
  size_t count = 0;
  for (const Given& given : ByKind(values)) {
    if (given.values.empty()) continue;
    if (count > 0 && given.values.size() != count) {
      return absl::InvalidArgumentError(
          absl::StrCat(count, " elements of one kind of state and ",
                       given.values.size(), " of another"));
    }
    count = given.values.size();
    TERRACE_RETURN_IF_ERROR(CheckRange(parameter, given.kind, offset, count));
  }
  int64_t& written = masters_written_[static_cast<size_t>(parameter)];
  if (!values.master.empty() && offset > written) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the master of parameter '",
        specs_[static_cast<size_t>(parameter)].name, "' is written up to ",
        written, "; elements from ", offset, " on would leave a gap"));
  }
  for (const Piece& piece : Pieces(parameter, offset, count)) {
    TERRACE_RETURN_IF_ERROR(WritePiece(
        held, piece, Part(values, piece.range_offset, piece.count), deadline));
    if (values.master.empty()) continue;
    written = std::max(written, offset + piece.range_offset + piece.count);
  }
  return absl::OkStatus();
}

absl::Status ChunkedOptimizer::WritePiece(HeldChunks& held, const Piece& piece,
                                          const StateValues& values,
                                          absl::Time deadline) {
  const Chunk& chunk = chunks_[static_cast<size_t>(piece.chunk)];
  ChunkContents& contents = pipeline_.contents(piece.chunk);
  const Access access = contents.fresh ? Access::kOverwrite : Access::kUpdate;
  TERRACE_ASSIGN_OR_RETURN(std::byte* const payload,
                           held.Hold(piece.chunk, chunk, access, deadline));
  if (contents.fresh) {
    std::memset(payload, 0, static_cast<size_t>(chunk.payload_bytes()));
  }
  contents.fresh = false;
  Held& holds = contents.segments[piece.segment];
  const Segment& segment = chunk.segments[piece.segment];
  for (const Given& given : ByKind(values)) {
    if (given.values.empty()) continue;
    if (given.kind != StateKind::kMaster && (holds & kHoldsMoments) == 0) {
      for (float* moment :
           {chunk.first_moment(payload), chunk.second_moment(payload)}) {
        std::memset(moment + segment.chunk_offset, 0,
                    FloatBytes(segment.count));
      }
    }
    std::memcpy(ArrayOf(chunk, given.kind, payload) + piece.chunk_offset,
                given.values.data(), FloatBytes(piece.count));
    holds = static_cast<Held>(holds | Needed(given.kind));
  }
  return absl::OkStatus();
}

}  // namespace terrace
