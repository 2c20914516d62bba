// Writes of the state, outside of steps.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "optimizer/state/state_array.h"
#include "optimizer/state/state_store.h"

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

class Writer final : public StateWriter {
 public:
  Writer(StateStore& store, StateGuard& guard)
      : store_(store), guard_(guard), held_(store.Hold()) {
    guard_.BeginLoad();
  }
  ~Writer() override {
    if (!committed_) guard_.EndLoad(false);
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  absl::Status Write(int parameter, int64_t offset, const StateValues& values,
                     Time deadline) override {
    TERRACE_RETURN_IF_ERROR(CheckOpen());
    return store_.Write(held_, parameter, offset, values,
                        store_.clock().FromWall(deadline));
  }

  absl::Status Commit(int64_t step,
                      absl::Span<const int64_t> parameter_steps) override {
    TERRACE_RETURN_IF_ERROR(CheckOpen());
    OptimizerState& state = store_.state();
    TERRACE_RETURN_IF_ERROR(state.counts.CheckMasters(state.specs));
    TERRACE_RETURN_IF_ERROR(
        state.counts.Assign(state.specs, step, parameter_steps));
    held_.Release();
    committed_ = true;
    guard_.EndLoad(true);
    return absl::OkStatus();
  }

 private:
  absl::Status CheckOpen() const {
    TERRACE_RETURN_IF_ERROR(guard_.CheckUsable());
    if (!committed_) return absl::OkStatus();
    return absl::FailedPreconditionError("the load was committed");
  }

  StateStore& store_;
  StateGuard& guard_;
  HeldChunks held_;
  bool committed_ = false;
};

}  // namespace

std::unique_ptr<StateWriter> MakeStateWriter(StateStore& store,
                                             StateGuard& guard) {
  return std::make_unique<Writer>(store, guard);
}

absl::Status StateStore::Write(HeldChunks& held, int parameter, int64_t offset,
                               const StateValues& values, absl::Time deadline) {
  TERRACE_RETURN_IF_ERROR(CheckRange(parameter, Kind::kFirstMoment, offset, 0));
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
  int64_t& written = state_.counts.master_written(parameter);
  if (!values.master.empty() && offset > written) {
    return absl::FailedPreconditionError(
        absl::StrCat("the master of parameter '",
                     state_.specs[static_cast<size_t>(parameter)].name,
                     "' is written up to ", written, "; elements from ", offset,
                     " on would leave a gap"));
  }
  for (const ChunkPiece& piece :
       state_.chunks.Pieces(parameter, offset, count)) {
    TERRACE_RETURN_IF_ERROR(WritePiece(
        held, piece, Part(values, piece.range_offset, piece.count), deadline));
    if (values.master.empty()) continue;
    written = std::max(written, offset + piece.range_offset + piece.count);
  }
  return absl::OkStatus();
}

absl::Status StateStore::WritePiece(HeldChunks& held, const ChunkPiece& piece,
                                    const StateValues& values,
                                    absl::Time deadline) {
  const Chunk& chunk = state_.chunks.chunk(piece.chunk);
  ChunkContents& contents = state_.chunks.contents(piece.chunk);
  const Access access = contents.fresh ? Access::kOverwrite : Access::kUpdate;
  TERRACE_ASSIGN_OR_RETURN(std::byte* const payload,
                           held.Hold(piece.chunk, access, deadline));
  if (contents.fresh) {
    std::memset(payload, 0, static_cast<size_t>(chunk.payload_bytes()));
  }
  contents.fresh = false;
  Held& holds = contents.segments[piece.segment];
  const Segment& segment = chunk.segments[piece.segment];
  for (const Given& given : ByKind(values)) {
    if (given.values.empty()) continue;
    if (given.kind != Kind::kMaster && (holds & kHoldsMoments) == 0) {
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
