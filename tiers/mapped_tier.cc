#include "tiers/mapped_tier.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/bytes.h"
#include "base/io_fault.h"
#include "tiers/extent_header.h"
#include "tiers/left_behind.h"

namespace terrace {
namespace {

// What outlives a power failure, or a stray store, is checked; memory is not.
std::optional<uint64_t> SealIdOf(TierKind kind) {
  if (kind == TierKind::kPmem) return NewSealId();
  return std::nullopt;
}

}  // namespace

MappedTier::MappedTier(MappedTierParts parts)
    : id_(parts.id),
      spec_(std::move(parts.spec)),
      medium_(std::move(parts.medium)),
      background_(*parts.background),
      events_(std::move(parts.events)),
      seal_id_(SealIdOf(spec_.kind)),
      space_(RoundDown(medium_->size_bytes(), kBlockBytes)) {
  ExcludeBadRanges();
}

void MappedTier::ExcludeBadRanges() {
  int64_t end = 0;
  for (const Extent& bad : medium_->bad_ranges()) {
    const int64_t from = std::max(end, RoundDown(bad.offset, kBlockBytes));
    end = std::min(space_.capacity_bytes(), RoundUp(bad.end(), kBlockBytes));
    if (from >= end) continue;
    space_.Withhold({from, end - from});
    bad_bytes_ += end - from;
  }
}

TierUsage MappedTier::usage() const {
  return {.capacity_bytes = space_.capacity_bytes() - bad_bytes_,
          .used_bytes = space_.used_bytes() - bad_bytes_,
          .peak_bytes = peak_bytes_};
}

absl::StatusOr<std::optional<Reservation>> MappedTier::Allocate(
    int64_t size_bytes, bool /*must*/) {
  const std::optional<Extent> extent = space_.TryAllocate(size_bytes);
  if (!extent.has_value()) {
    return WithIoFault(
        absl::ResourceExhaustedError(absl::StrCat(
            name(), ": no room for ", size_bytes, " bytes: ",
            space_.free_bytes(), " of ", usage().capacity_bytes, " are free, ",
            space_.largest_free_bytes(), " of them in one piece")),
        {.path = name()});
  }
  peak_bytes_ = std::max(peak_bytes_, usage().used_bytes);
  return std::optional<Reservation>(Reservation(this, *extent));
}

void MappedTier::Free(Extent extent) {
  if (!abandoned_) space_.Free(extent);
}

void MappedTier::BeginRemove() {
  removing_ = true;
  background_.Run([medium = medium_, events = events_, id = id_] {
    events->OnTier(Removed{id, medium->Remove()});
  });
}

// What a copy that never ended may still touch stays mapped.
void MappedTier::Abandon() {
  abandoned_ = true;
  LeaveBehind(medium_);
}

}  // namespace terrace
