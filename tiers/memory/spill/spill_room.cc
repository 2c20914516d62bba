#include "tiers/memory/spill/spill_room.h"

#include <algorithm>

#include "base/status_macros.h"

namespace terrace {

absl::StatusOr<Reservation> SpillRoom::Allocate(int64_t size_bytes) {
  TERRACE_ASSIGN_OR_RETURN(const int64_t offset, source_->Take(size_bytes));
  return Reserve({offset, size_bytes});
}

Reservation SpillRoom::TakeAt(const Extent& range) {
  return source_->TakeAt(range) ? Reserve(range) : Reservation();
}

Reservation SpillRoom::Reserve(const Extent& range) {
  used_bytes_ += range.size_bytes;
  peak_bytes_ = std::max(peak_bytes_, used_bytes_);
  return {this, range};
}

void SpillRoom::Free(Extent extent) {
  source_->Give(extent);
  used_bytes_ -= extent.size_bytes;
}

}  // namespace terrace
