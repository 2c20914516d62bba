#include "tiers/disk/disk_tier.h"

#include <algorithm>
#include <utility>

#include "tiers/extent_header.h"
#include "tiers/left_behind.h"

namespace terrace {

DiskTier::DiskTier(DiskTierParts parts)
    : id_(parts.id),
      file_(std::move(parts.file)),
      background_(*parts.background),
      events_(std::move(parts.events)),
      seal_id_(file_->info().seal_id != 0 ? file_->info().seal_id
                                          : NewSealId()),
      growth_(parts.clock, parts.patience) {
  if (file_->reclaims()) StartReclaim();
}

TierSpec DiskTier::spec() const {
  return {.kind = TierKind::kDisk,
          .place = info().directory.empty() ? info().file : info().directory,
          .budget_bytes = info().budget_bytes};
}

TierUsage DiskTier::usage() const {
  return {.capacity_bytes = file_->capacity_bytes(),
          .used_bytes = file_->used_bytes(),
          .peak_bytes = peak_bytes_};
}

absl::StatusOr<std::optional<Reservation>> DiskTier::Allocate(
    int64_t size_bytes, bool must) {
  // What waits for it comes first when it has grown.
  if (growth_.growing()) return std::optional<Reservation>();
  const absl::StatusOr<Extent> extent = file_->Allocate(size_bytes);
  if (extent.ok()) {
    peak_bytes_ = std::max(peak_bytes_, file_->used_bytes());
    return std::optional<Reservation>(Reservation(this, *extent));
  }
  if (!must && growth_.refused()) return extent.status();
  const absl::StatusOr<Growth> growth = file_->GrowthFor(size_bytes);
  if (!growth.ok()) return growth.status();
  growth_.Begin(*growth, must, file_->growth_progress());
  background_.Run([file = file_, events = events_, id = id_, growth = *growth] {
    events->OnTier(Grown{id, file->Grow(growth)});
  });
  return std::optional<Reservation>();
}

Reservation DiskTier::TakeAt(const Extent& range) {
  if (!file_->TakeAt(range)) return {};
  peak_bytes_ = std::max(peak_bytes_, file_->used_bytes());
  return {this, range};
}

void DiskTier::Free(Extent extent) {
  if (!abandoned_) file_->Free(extent);
}

absl::Status DiskTier::CheckGrowth(absl::Time now) {
  return growth_.Check(now, file_->growth_progress(), name());
}

GrowthAnswer DiskTier::OnGrown(const Grown& event) {
  if (event.gained_bytes.ok()) file_->AddSpace(*event.gained_bytes);
  return growth_.End(event.gained_bytes.status());
}

void DiskTier::StartReclaim() {
  background_.Run([file = file_, events = events_, id = id_] {
    events->OnTier(Reclaimed{id, file->Reclaim()});
  });
}

void DiskTier::OnReclaimed(const Reclaimed& event) {
  if (event.more && !ending_) StartReclaim();
}

// After what the file grows by, if it does.
void DiskTier::BeginRemove() {
  ending_ = true;
  removing_ = true;
  background_.Run([file = file_, events = events_, id = id_] {
    events->OnTier(Removed{id, file->Remove()});
  });
}

// The file's descriptor, whose number must not become another file's, stays.
void DiskTier::Abandon() {
  abandoned_ = true;
  LeaveBehind(file_);
}

}  // namespace terrace
