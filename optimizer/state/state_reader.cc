// Copies of the state, outside of steps.
#include <algorithm>
#include <array>
#include <cstring>
#include <memory>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "optimizer/state/state_array.h"
#include "optimizer/state/state_store.h"

namespace terrace {

struct StateStore::Wanted {
  Kind kind;
  absl::Span<float> out;

  static std::array<Wanted, 3> ByKind(const StateSpans& spans) {
    return {{{Kind::kMaster, spans.master},
             {Kind::kFirstMoment, spans.first_moment},
             {Kind::kSecondMoment, spans.second_moment}}};
  }
};

absl::Status StateStore::Read(HeldChunks& held, int parameter, int64_t offset,
                              const StateSpans& out,
                              absl::Time deadline) const {
  size_t count = 0;
  for (const Wanted& wanted : Wanted::ByKind(out)) {
    if (wanted.out.empty()) continue;
    if (count > 0 && wanted.out.size() != count) {
      return absl::InvalidArgumentError(
          absl::StrCat("room for ", count, " elements of one kind of state and",
                       " for ", wanted.out.size(), " of another"));
    }
    count = wanted.out.size();
    TERRACE_RETURN_IF_ERROR(CheckRange(parameter, wanted.kind, offset, count));
  }
  if (count == 0) return CheckRange(parameter, Kind::kFirstMoment, offset, 0);
  for (const ChunkPiece& piece :
       state_.chunks.Pieces(parameter, offset, count)) {
    for (const Wanted& wanted : Wanted::ByKind(out)) {
      if (wanted.out.empty()) continue;
      TERRACE_RETURN_IF_ERROR(
          ReadPiece(held, piece,
                    {wanted.kind,
                     wanted.out.subspan(static_cast<size_t>(piece.range_offset),
                                        static_cast<size_t>(piece.count))},
                    deadline));
    }
  }
  return absl::OkStatus();
}

absl::Status StateStore::ReadPiece(HeldChunks& held, const ChunkPiece& piece,
                                   const Wanted& wanted,
                                   absl::Time deadline) const {
  const Chunk& chunk = state_.chunks.chunk(piece.chunk);
  const ChunkContents& contents = state_.chunks.contents(piece.chunk);
  if ((contents.segments[piece.segment] & Needed(wanted.kind)) == 0) {
    if (wanted.kind == Kind::kMaster) {
      const auto parameter =
          static_cast<size_t>(chunk.segments[piece.segment].parameter);
      return absl::FailedPreconditionError(
          absl::StrCat("parameter '", state_.specs[parameter].name,
                       "' has no master before its first step"));
    }
    std::fill(wanted.out.begin(), wanted.out.end(), 0.0f);
    return absl::OkStatus();
  }
  TERRACE_ASSIGN_OR_RETURN(std::byte* const payload,
                           held.Hold(piece.chunk, Access::kRead, deadline));
  const float* source =
      ArrayOf(chunk, wanted.kind, payload) + piece.chunk_offset;
  std::memcpy(wanted.out.data(), source, wanted.out.size() * sizeof(float));
  return absl::OkStatus();
}

namespace {

class Reader final : public StateReader {
 public:
  Reader(const StateStore& store, StateGuard& guard)
      : store_(store), guard_(guard), held_(store.Hold()) {
    guard_.BeginRead();
  }
  ~Reader() override { guard_.EndRead(); }
  Reader(const Reader&) = delete;
  Reader& operator=(const Reader&) = delete;

  absl::Status Read(int parameter, int64_t offset, const StateSpans& out,
                    Time deadline) override {
    TERRACE_RETURN_IF_ERROR(guard_.CheckUsable());
    return store_.Read(held_, parameter, offset, out,
                       store_.clock().FromWall(deadline));
  }

 private:
  const StateStore& store_;
  StateGuard& guard_;
  HeldChunks held_;
};

}  // namespace

std::unique_ptr<StateReader> MakeStateReader(const StateStore& store,
                                             StateGuard& guard) {
  return std::make_unique<Reader>(store, guard);
}

}  // namespace terrace
