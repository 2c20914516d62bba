#include "runtime/motion/resting_tiers.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace terrace {

RestingTiers::RestingTiers(std::vector<std::unique_ptr<MappedTier>> mapped,
                           std::vector<std::unique_ptr<DiskTier>> disks) {
  for (auto& tier : mapped) tiers_.push_back(std::move(tier));
  for (auto& tier : disks) tiers_.push_back(std::move(tier));
  for (const auto& tier : tiers_) {
    const TierId id = tier->id();
    const auto before =
        std::count_if(ids_.begin(), ids_.end(),
                      [id](TierId other) { return other.kind == id.kind; });
    TERRACE_CHECK(IsRestingTier(id) && id.number == before);
    ids_.push_back(id);
  }
}

int RestingTiers::IndexOf(TierId tier) const {
  const auto found = std::find(ids_.begin(), ids_.end(), tier);
  TERRACE_CHECK(found != ids_.end());
  return static_cast<int>(found - ids_.begin());
}

const DiskTier& RestingTiers::disk(TierId tier) const {
  TERRACE_CHECK(tier.kind == TierKind::kDisk);
  return static_cast<const DiskTier&>(at(tier));
}

void RestingTiers::ForgetRefusals() {
  for (const auto& tier : tiers_) tier->ForgetRefusals();
}

absl::Time RestingTiers::NextEvent() const {
  absl::Time next = absl::InfiniteFuture();
  for (const auto& tier : tiers_) next = std::min(next, tier->NextEvent());
  return next;
}

void RestingTiers::BeginRemove(bool quiet) {
  const bool disks = !std::exchange(removing_disks_, true);
  const bool mapped = quiet && !std::exchange(removing_mapped_, true);
  for (const auto& tier : tiers_) {
    if (tier->kind() == TierKind::kDisk ? disks : mapped) tier->BeginRemove();
  }
}

void RestingTiers::OnRemoved(const Removed& event) {
  at(event.tier).OnRemoved();
  removal_status_.Update(event.status);
}

std::vector<std::string> RestingTiers::unremoved() const {
  std::vector<std::string> names;
  for (const auto& tier : tiers_) {
    const bool waits =
        removing_disks_ && !removing_mapped_ && tier->kind() == TierKind::kPmem;
    if (waits || !tier->removed()) names.push_back(tier->name());
  }
  return names;
}

void RestingTiers::Abandon() {
  for (const auto& tier : tiers_) tier->Abandon();
}

}  // namespace terrace
