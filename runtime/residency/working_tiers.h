// The residencies of the tiers that customers work on: memory's, and above it a
// device's where there is one. Mover only.
#pragma once

#include <array>
#include <cstdint>

#include "absl/types/span.h"
#include "base/check.h"
#include "runtime/residency/tier_residency.h"
#include "tiers/reservation.h"

namespace terrace {

class WorkingTiers {
 public:
  // Both outlive it; `hbm` is null where there is no device.
  WorkingTiers(TierResidency* dram, TierResidency* hbm)
      : tiers_({dram, hbm}), count_(hbm == nullptr ? 1 : 2) {}

  bool Has(TierId tier) const {
    return IsWorkingTier(tier) && WorkingIndex(tier) < count_;
  }
  TierResidency& at(TierId tier) const { return *tiers_[WorkingIndex(tier)]; }
  // Memory's first.
  absl::Span<TierResidency* const> all() const {
    return {tiers_.data(), count_};
  }

  // A pin, or a transfer, of one of its copies has ended.
  void OnUsed(const Tensor& tensor) const {
    for (TierResidency* const each : all()) {
      each->windows().OnUsed(each->WindowOf(tensor));
    }
  }
  // Of a group's tensors, from here to EndKeep: none of their copies leaves.
  void Keep(const Tensor& tensor) const {
    for (TierResidency* const each : all()) {
      if (tensor.at(each->id()) != nullptr) each->Keep(tensor);
    }
  }
  void EndKeep() const {
    for (TierResidency* const each : all()) each->EndKeep();
  }
  void Stay(const Tensor& tensor) const {
    for (TierResidency* const each : all()) each->Stay(tensor);
  }
  // Whether it has a dirty copy in a window, on whichever tier.
  bool IsDirtyInWindow(const Tensor& tensor) const {
    const TierResidency& residency = OfDirty(tensor);
    return tensor.Dirty(residency.id()) &&
           residency.WindowOf(tensor) != nullptr;
  }
  // What is dirty lies on one tier: on the slowest that has the newest.
  TierResidency& OfDirty(const Tensor& tensor) const {
    const bool above = count_ > 1 && tensor.at(kDramTier) == nullptr;
    return *tiers_[above ? 1 : 0];
  }
  // Its copies on the others; what is in one of them is stale.
  void DropBeside(Tensor& tensor, TierId tier) const {
    for (TierResidency* const each : all()) {
      if (each->id() != tier && tensor.at(each->id()) != nullptr) {
        each->Drop(tensor);
      }
    }
  }
  void DropAll(Tensor& tensor) const {
    for (TierResidency* const each : all()) each->Drop(tensor);
  }
  int64_t evictions() const {
    int64_t sum = 0;
    for (const TierResidency* const each : all()) sum += each->evictions();
    return sum;
  }

 private:
  const std::array<TierResidency*, kWorkingTiers> tiers_;  // by WorkingIndex
  const size_t count_;
};

}  // namespace terrace
