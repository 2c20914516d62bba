#include "tiers/memory/spill/spill_room.h"

#include <algorithm>

#include "base/status_macros.h"

namespace terrace {

absl::StatusOr<Reservation> SpillRoom::Allocate(int64_t size_bytes) {
  TERRACE_ASSIGN_OR_RETURN(const int64_t offset, source_->Take(size_bytes));
  used_bytes_ += size_bytes;
  peak_bytes_ = std::max(peak_bytes_, used_bytes_);
  return Reservation(this, {offset, size_bytes});
}

void SpillRoom::Free(Extent extent) {
  source_->Give(extent);
  used_bytes_ -= extent.size_bytes;
}

}  // namespace terrace
