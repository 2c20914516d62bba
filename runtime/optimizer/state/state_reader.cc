// Copies of the state, outside of steps.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "runtime/optimizer/chunked_optimizer.h"
#include "runtime/optimizer/state/state_array.h"

namespace terrace {
namespace {

struct Wanted {
  OffloadedOptimizer::StateKind kind;
  absl::Span<float> out;
};

std::array<Wanted, 3> ByKind(const StateSpans& spans) {
  using Kind = OffloadedOptimizer::StateKind;
  return {{{Kind::kMaster, spans.master},
           {Kind::kFirstMoment, spans.first_moment},
           {Kind::kSecondMoment, spans.second_moment}}};
}

}  // namespace

class ChunkedOptimizer::Reader final : public StateReader {
 public:
  explicit Reader(ChunkedOptimizer& optimizer)
      : optimizer_(optimizer), held_(optimizer.pipeline_) {
    optimizer_.reading_ = true;
  }
  ~Reader() override { optimizer_.reading_ = false; }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  absl::Status Read(int parameter, int64_t offset, const StateSpans& out,
                    Time deadline) override;

 private:
  absl::Status ReadPiece(const Piece& piece, const Wanted& wanted,
                         absl::Time deadline);

  ChunkedOptimizer& optimizer_;
  HeldChunks held_;
};

absl::Status ChunkedOptimizer::Reader::Read(int parameter, int64_t offset,
                                            const StateSpans& out,
                                            Time deadline) {
  TERRACE_RETURN_IF_ERROR(optimizer_.CheckUsable());
  size_t count = 0;
  for (const Wanted& wanted : ByKind(out)) {
    if (wanted.out.empty()) continue;
    if (count > 0 && wanted.out.size() != count) {
      return absl::InvalidArgumentError(
          absl::StrCat("room for ", count, " elements of one kind of state and",
                       " for ", wanted.out.size(), " of another"));
    }
    count = wanted.out.size();
    TERRACE_RETURN_IF_ERROR(
        optimizer_.CheckRange(parameter, wanted.kind, offset, count));
  }
  if (count == 0) {
    return optimizer_.CheckRange(parameter, StateKind::kFirstMoment, offset, 0);
  }
  const absl::Time end = optimizer_.runtime_.clock().FromWall(deadline);
  for (const Piece& piece : optimizer_.Pieces(parameter, offset, count)) {
    for (const Wanted& wanted : ByKind(out)) {
      if (wanted.out.empty()) continue;
      TERRACE_RETURN_IF_ERROR(
          ReadPiece(piece,
                    {wanted.kind,
                     wanted.out.subspan(static_cast<size_t>(piece.range_offset),
                                        static_cast<size_t>(piece.count))},
                    end));
    }
  }
  return absl::OkStatus();
}

absl::Status ChunkedOptimizer::Reader::ReadPiece(const Piece& piece,
                                                 const Wanted& wanted,
                                                 absl::Time deadline) {
  const Chunk& chunk = optimizer_.chunks_[static_cast<size_t>(piece.chunk)];
  const ChunkContents& contents = optimizer_.pipeline_.contents(piece.chunk);
  if ((contents.segments[piece.segment] & Needed(wanted.kind)) == 0) {
    if (wanted.kind == StateKind::kMaster) {
      const auto parameter =
          static_cast<size_t>(chunk.segments[piece.segment].parameter);
      return absl::FailedPreconditionError(
          absl::StrCat("parameter '", optimizer_.specs_[parameter].name,
                       "' has no master before its first step"));
    }
    std::fill(wanted.out.begin(), wanted.out.end(), 0.0f);
    return absl::OkStatus();
  }
  TERRACE_ASSIGN_OR_RETURN(
      std::byte* const payload,
      held_.Hold(piece.chunk, chunk, Access::kRead, deadline));
  const float* source =
      ArrayOf(chunk, wanted.kind, payload) + piece.chunk_offset;
  std::memcpy(wanted.out.data(), source, wanted.out.size() * sizeof(float));
  return absl::OkStatus();
}

bool ChunkedOptimizer::HasState(int parameter, StateKind kind) const {
  if (!CheckRange(parameter, kind, 0, 0).ok()) return false;
  const ParameterSpec& spec = specs_[static_cast<size_t>(parameter)];
  const std::vector<Piece> pieces =
      Pieces(parameter, 0, static_cast<size_t>(spec.count));
  return std::all_of(pieces.begin(), pieces.end(), [&](const Piece& piece) {
    const Held held = pipeline_.contents(piece.chunk).segments[piece.segment];
    return (held & Needed(kind)) != 0;
  });
}

absl::StatusOr<std::unique_ptr<StateReader>>
ChunkedOptimizer::OpenStateReader() {
  TERRACE_RETURN_IF_ERROR(CheckQuiet("state cannot be read"));
  TERRACE_RETURN_IF_ERROR(CheckLoaded("state cannot be read"));
  return std::make_unique<Reader>(*this);
}

}  // namespace terrace
