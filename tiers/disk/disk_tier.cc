#include "tiers/disk/disk_tier.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/io_fault.h"
#include "tiers/extent_header.h"
#include "tiers/left_behind.h"

namespace terrace {

DiskTier::DiskTier(DiskTierParts parts)
    : id_(parts.id),
      file_(std::move(parts.file)),
      background_(*parts.background),
      events_(std::move(parts.events)),
      clock_(*parts.clock),
      patience_(parts.patience),
      seal_id_(file_->info().seal_id != 0 ? file_->info().seal_id
                                          : NewSealId()) {
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
  if (growing_) return std::optional<Reservation>();
  const absl::StatusOr<Extent> extent = file_->Allocate(size_bytes);
  if (extent.ok()) {
    peak_bytes_ = std::max(peak_bytes_, file_->used_bytes());
    return std::optional<Reservation>(Reservation(this, *extent));
  }
  if (!must && refused_growth_) return extent.status();
  const absl::StatusOr<Growth> growth = file_->GrowthFor(size_bytes);
  if (!growth.ok()) return growth.status();
  StartGrowth(*growth, must);
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

void DiskTier::StartGrowth(const Growth& growth, bool must) {
  growing_ = true;
  late_ = false;
  must_grow_ = must;
  growth_bytes_ = growth.bytes;
  since_ = clock_.Now();
  watch_.Expect(patience_);
  watch_.Begin(since_);
  progress_ = file_->growth_progress();
  background_.Run([file = file_, events = events_, id = id_, growth] {
    events->OnTier(Grown{id, file->Grow(growth)});
  });
}

absl::Status DiskTier::CheckGrowth(absl::Time now) {
  if (!growing_ || late_) return absl::OkStatus();
  watch_.Look(now);
  since_ = std::max(since_, watch_.since());
  const int64_t progress = file_->growth_progress();
  if (progress != progress_) {
    progress_ = progress;
    since_ = now;
    return absl::OkStatus();
  }
  if (now < since_ + patience_) return absl::OkStatus();
  late_ = true;
  return WithIoFault(
      absl::DeadlineExceededError(absl::StrCat(
          name(), ": growing by ", growth_bytes_, " bytes: no answer for ",
          absl::FormatDuration(now - since_))),
      {.path = name()});
}

absl::Time DiskTier::NextEvent() const {
  if (!growing_ || late_) return absl::InfiniteFuture();
  return std::min(since_ + patience_, watch_.next_look());
}

GrowthAnswer DiskTier::OnGrown(const Grown& event) {
  growing_ = false;
  refused_growth_ = !event.gained_bytes.ok();
  if (event.gained_bytes.ok()) file_->AddSpace(*event.gained_bytes);
  return {event.gained_bytes.status(), std::exchange(late_, false), must_grow_};
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
