#include "tiers/device/device_tier.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "tiers/left_behind.h"

namespace terrace {

DeviceTier::DeviceTier(TierId id, TierSpec spec,
                       std::shared_ptr<DeviceSpace> space)
    : id_(id),
      spec_(std::move(spec)),
      name_(space->name()),
      space_(std::move(space)),
      ranges_(space_->size_bytes()) {
  TERRACE_CHECK(spec_.kind == TierKind::kHbm);
}

TierUsage DeviceTier::usage() const {
  return {.capacity_bytes = ranges_.capacity_bytes(),
          .used_bytes = ranges_.used_bytes(),
          .peak_bytes = peak_bytes_};
}

absl::StatusOr<std::optional<Reservation>> DeviceTier::Allocate(
    int64_t size_bytes, bool /*must*/) {
  TERRACE_RETURN_IF_ERROR(Health());
  const std::optional<Extent> extent = ranges_.TryAllocate(size_bytes);
  if (!extent.has_value()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        name_, ": no room for ", size_bytes, " bytes: ", ranges_.free_bytes(),
        " of ", ranges_.capacity_bytes(), " are free, ",
        ranges_.largest_free_bytes(), " of them in one piece"));
  }
  peak_bytes_ = std::max(peak_bytes_, ranges_.used_bytes());
  return std::optional<Reservation>(Reservation(this, *extent));
}

void DeviceTier::Free(Extent extent) {
  if (!abandoned_) ranges_.Free(extent);
}

void DeviceTier::Abandon() {
  abandoned_ = true;
  LeaveBehind(space_);
}

}  // namespace terrace
