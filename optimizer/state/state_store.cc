#include "optimizer/state/state_store.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "optimizer/state/state_array.h"

namespace terrace {

absl::Status StateStore::CheckRange(int parameter, Kind kind, int64_t offset,
                                    size_t count) const {
  if (parameter < 0 || static_cast<size_t>(parameter) >= state_.specs.size()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "there is no parameter ", parameter, " of ", state_.specs.size()));
  }
  const ParameterSpec& spec = state_.specs[static_cast<size_t>(parameter)];
  if (offset < 0 || offset > spec.count ||
      static_cast<int64_t>(count) > spec.count - offset) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter '", spec.name, "' has ", spec.count,
        " elements, not those from ", offset, " on, ", count, " of them"));
  }
  if (kind == Kind::kMaster && spec.dtype == DType::kFloat32) {
    return absl::InvalidArgumentError(absl::StrCat(
        "parameter '", spec.name, "' is fp32 and has no master of its own"));
  }
  return absl::OkStatus();
}

bool StateStore::HasState(int parameter, Kind kind) const {
  if (!CheckRange(parameter, kind, 0, 0).ok()) return false;
  const ParameterSpec& spec = state_.specs[static_cast<size_t>(parameter)];
  const std::vector<ChunkPiece> pieces =
      state_.chunks.Pieces(parameter, 0, static_cast<size_t>(spec.count));
  return std::all_of(
      pieces.begin(), pieces.end(), [&](const ChunkPiece& piece) {
        const Held held =
            state_.chunks.contents(piece.chunk).segments[piece.segment];
        return (held & Needed(kind)) != 0;
      });
}

void StateStore::Forget(int parameter) {
  const ParameterSpec& spec = state_.specs[static_cast<size_t>(parameter)];
  for (const ChunkPiece& piece :
       state_.chunks.Pieces(parameter, 0, static_cast<size_t>(spec.count))) {
    state_.chunks.contents(piece.chunk)
        .Forget(state_.chunks.chunk(piece.chunk), piece.segment);
  }
  state_.counts.Forget(parameter);
}

}  // namespace terrace
