// The residencies of the tiers that customers work on: memories', and above
// them devices'. Mover only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "runtime/residency/tier_residency.h"
#include "tiers/reservation.h"

namespace terrace {

class WorkingTiers {
 public:
  // Memories first, then devices, each kind in the order of its numbers. All
  // outlive it.
  explicit WorkingTiers(std::vector<TierResidency*> tiers)
      : tiers_(std::move(tiers)) {
    for (const TierResidency* const each : tiers_) {
      if (IsMemory(each->id())) ++memories_;
    }
  }

  // By a customer's text: as Stats names it (`dram:node1`), by its number among
  // its kind (`hbm:1`), or by its kind alone, which is the first; "" is the
  // first memory. InvalidArgument, with those that there are: none.
  absl::StatusOr<TierResidency*> Named(absl::string_view text) const;
  TierResidency& at(TierId tier) const { return *tiers_[IndexOf(tier)]; }
  // Its place in all().
  size_t IndexOf(TierId tier) const {
    const auto number = static_cast<size_t>(tier.number);
    return IsMemory(tier) ? number : memories_ + number;
  }
  absl::Span<TierResidency* const> all() const { return tiers_; }
  absl::Span<TierResidency* const> memories() const {
    return all().first(memories_);
  }
  absl::Span<TierResidency* const> devices() const {
    return all().subspan(memories_);
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
  // What is dirty lies on one tier: on the first that has the tensor, as it
  // keeps the newest contents, or will when they have come.
  TierResidency& OfDirty(const Tensor& tensor) const {
    for (TierResidency* const each : tiers_) {
      if (tensor.at(each->id()) != nullptr) return *each;
    }
    return *tiers_.front();
  }
  // Its copies on the others; what is in one of them is stale.
  void DropBeside(Tensor& tensor, TierId tier) const {
    for (TierResidency* const each : all()) {
      if (each->id() != tier && tensor.at(each->id()) != nullptr) {
        each->Drop(tensor);
      }
    }
  }
  // What passed through that range of the first memory on its way to a device
  // becomes a resident there, unless a window waits for room or a writer has
  // the tensor.
  void KeepPassed(Tensor& tensor, Reservation room) const;
  void DropAll(Tensor& tensor) const {
    for (TierResidency* const each : all()) each->Drop(tensor);
  }
  int64_t evictions() const {
    int64_t sum = 0;
    for (const TierResidency* const each : all()) sum += each->evictions();
    return sum;
  }

 private:
  const std::vector<TierResidency*> tiers_;
  size_t memories_ = 0;
};

}  // namespace terrace
