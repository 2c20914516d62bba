#include "tiers/memory/spill_room.h"

#include <algorithm>
#include <utility>

#include "base/status_macros.h"

namespace terrace {

absl::StatusOr<Reservation> SpillRoom::Allocate(int64_t size_bytes) {
  HostArenaOptions options;
  options.size_bytes = size_bytes;
  options.huge_pages = HugePages::kOff;
  options.inspect = false;
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<HostArena> range,
                           HostArena::Create(options));
  const int64_t offset = range->bytes().data() - arena_;
  ranges_[offset] = std::move(range);
  used_bytes_ += size_bytes;
  peak_bytes_ = std::max(peak_bytes_, used_bytes_);
  return Reservation(this, {offset, size_bytes});
}

void SpillRoom::Free(Extent extent) {
  ranges_.erase(extent.offset);
  used_bytes_ -= extent.size_bytes;
}

void SpillRoom::Leak() {
  for (auto& [offset, range] : ranges_) range->Leak();
}

}  // namespace terrace
