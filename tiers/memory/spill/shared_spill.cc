#include "tiers/memory/spill/shared_spill.h"

#include "base/status_macros.h"

namespace terrace {

SharedSpill::SharedSpill(HostArena& arena)
    : arena_(arena), space_(arena.spill().size_bytes) {}

absl::StatusOr<int64_t> SharedSpill::Take(int64_t size_bytes) {
  TERRACE_ASSIGN_OR_RETURN(const Extent range, space_.Allocate(size_bytes));
  const Extent at{arena_.spill().offset + range.offset, range.size_bytes};
  const absl::Status populated = arena_.PopulateRange(at);
  if (populated.ok()) return at.offset;
  space_.Free(range);
  return populated;
}

bool SharedSpill::TakeAt(const Extent& range) {
  return space_.TryTake(
      {range.offset - arena_.spill().offset, range.size_bytes});
}

void SharedSpill::EmptyFree() {
  space_.ForEachFree([this](const Extent& range) {
    arena_.EmptyRange({arena_.spill().offset + range.offset, range.size_bytes});
  });
}

void SharedSpill::Give(const Extent& range) {
  if (has_leaked_) return;
  arena_.EmptyRange(range);
  space_.Free({range.offset - arena_.spill().offset, range.size_bytes});
}

}  // namespace terrace
