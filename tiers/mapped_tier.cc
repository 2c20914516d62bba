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
std::optional<uint64_t> SealIdOf(TierKind kind, const Medium& medium) {
  if (kind != TierKind::kPmem) return std::nullopt;
  return medium.seal_id() != 0 ? medium.seal_id() : NewSealId();
}

}  // namespace

MappedTier::MappedTier(MappedTierParts parts)
    : id_(parts.id),
      spec_(std::move(parts.spec)),
      medium_(std::move(parts.medium)),
      background_(*parts.background),
      events_(std::move(parts.events)),
      seal_id_(SealIdOf(spec_.kind, *medium_)),
      space_(RoundDown(medium_->size_bytes(), kBlockBytes)),
      growth_(parts.clock, parts.patience) {
  ExcludeBadRanges(0);
}

void MappedTier::ExcludeBadRanges(int64_t from) {
  int64_t end = from;
  for (const Extent& bad : medium_->bad_ranges()) {
    const int64_t begin = std::max(end, RoundDown(bad.offset, kBlockBytes));
    const int64_t bad_end =
        std::min(space_.capacity_bytes(), RoundUp(bad.end(), kBlockBytes));
    if (begin >= bad_end) continue;
    end = bad_end;
    space_.Withhold({begin, end - begin});
    bad_bytes_ += end - begin;
  }
}

TierUsage MappedTier::usage() const {
  return {.capacity_bytes = space_.capacity_bytes() - bad_bytes_,
          .used_bytes = space_.used_bytes() - bad_bytes_,
          .peak_bytes = peak_bytes_};
}

absl::Status MappedTier::NoRoom(int64_t size_bytes) const {
  return WithIoFault(
      absl::ResourceExhaustedError(absl::StrCat(
          name(), ": no room for ", size_bytes, " bytes: ", space_.free_bytes(),
          " of ", usage().capacity_bytes, " are free, ",
          space_.largest_free_bytes(), " of them in one piece")),
      {.path = name()});
}

absl::StatusOr<std::optional<Reservation>> MappedTier::Allocate(
    int64_t size_bytes, bool must) {
  // What waits for it comes first when it has grown.
  if (growth_.growing()) return std::optional<Reservation>();
  const std::optional<Extent> extent = space_.TryAllocate(size_bytes);
  if (extent.has_value()) {
    peak_bytes_ = std::max(peak_bytes_, usage().used_bytes);
    return std::optional<Reservation>(Reservation(this, *extent));
  }
  const int64_t left =
      RoundDown(medium_->most_bytes(), kBlockBytes) - space_.capacity_bytes();
  if (left <= 0 || size_bytes > left + space_.free_tail_bytes() ||
      (!must && growth_.refused())) {
    return NoRoom(size_bytes);
  }
  const Growth growth =
      GrowthBy(RoundUp(size_bytes, kBlockBytes) - space_.free_tail_bytes(),
               space_.capacity_bytes(), left);
  growth_.Begin(growth, must, /*progress=*/0);
  background_.Run([medium = medium_, events = events_, id = id_, growth] {
    events->OnTier(Grown{id, medium->Grow(growth)});
  });
  return std::optional<Reservation>();
}

absl::Status MappedTier::CheckGrowth(absl::Time now) {
  return growth_.Check(now, /*progress=*/0, name());
}

GrowthAnswer MappedTier::OnGrown(const Grown& event) {
  if (event.gained_bytes.ok()) {
    const int64_t end = space_.capacity_bytes();
    space_.Grow(*event.gained_bytes);
    ExcludeBadRanges(end);
  }
  return growth_.End(event.gained_bytes.status());
}

Reservation MappedTier::TakeAt(const Extent& range) {
  if (!space_.TryTake(range)) return {};
  peak_bytes_ = std::max(peak_bytes_, usage().used_bytes);
  return {this, range};
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
