#include "tiers/memory/spill/mapped_spill.h"

#include <utility>

#include "base/status_macros.h"

namespace terrace {

absl::StatusOr<int64_t> MappedSpill::Take(int64_t size_bytes) {
  HostArenaOptions options;
  options.size_bytes = size_bytes;
  options.huge_pages = HugePages::kOff;
  options.inspect = false;
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<HostArena> range,
                           HostArena::Create(options));
  const int64_t offset = range->bytes().data() - arena_;
  ranges_[offset] = std::move(range);
  return offset;
}

void MappedSpill::Leak() {
  for (auto& [offset, range] : ranges_) range->Leak();
}

}  // namespace terrace
