// The tiers that tensors rest on, below memory: their space, which grows in
// the background, and their end. What rests there is the tensors'. Mover only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tiers/disk/disk_tier.h"

namespace terrace {

class RestingTiers {
 public:
  // Tier 1 + k is the k-th.
  explicit RestingTiers(std::vector<std::unique_ptr<DiskTier>> tiers);

  int count() const { return static_cast<int>(tiers_.size()); }
  static constexpr TierId first() { return kDramTier + 1; }
  TierId end() const { return first() + count(); }
  DiskTier& at(TierId tier) {
    return *tiers_[static_cast<size_t>(tier - first())];
  }
  const DiskTier& at(TierId tier) const {
    return *tiers_[static_cast<size_t>(tier - first())];
  }
  const std::string& name(TierId tier) const { return at(tier).name(); }

  void ForgetRefusals();
  absl::Time NextEvent() const;

  // Removes all files; Removed events tell of it.
  void BeginRemove();
  bool removals_begun() const { return removing_; }
  void OnRemoved(const Removed& event);
  std::vector<std::string> unremoved() const;  // names
  const absl::Status& removal_status() const { return removal_status_; }
  void Abandon();

 private:
  std::vector<std::unique_ptr<DiskTier>> tiers_;
  bool removing_ = false;
  absl::Status removal_status_;  // the first error
};

}  // namespace terrace
