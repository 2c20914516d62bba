// The tiers that tensors rest on, below memory: their space, which may grow in
// the background, and their end. What rests there is the tensors'. Mover only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "tiers/disk/disk_tier.h"
#include "tiers/mapped_tier.h"

namespace terrace {

class RestingTiers {
 public:
  // Mapped tiers first, then disks, each numbered among its kind.
  RestingTiers(std::vector<std::unique_ptr<MappedTier>> mapped,
               std::vector<std::unique_ptr<DiskTier>> disks);

  int count() const { return static_cast<int>(tiers_.size()); }
  // All of them, in their order; and the place of one in that.
  const std::vector<TierId>& ids() const { return ids_; }
  int IndexOf(TierId tier) const;
  Tier& at(TierId tier) { return *tiers_[static_cast<size_t>(IndexOf(tier))]; }
  const Tier& at(TierId tier) const {
    return *tiers_[static_cast<size_t>(IndexOf(tier))];
  }
  const std::string& name(TierId tier) const { return at(tier).name(); }
  const DiskTier& disk(TierId tier) const;

  void ForgetRefusals();
  absl::Time NextEvent() const;

  // Removes all files; Removed events tell of it. Until nothing moves any more
  // (`quiet`; then it is called again) what is mapped stays: a copy would go on
  // in memory that is gone.
  void BeginRemove(bool quiet);
  void OnRemoved(const Removed& event);
  std::vector<std::string> unremoved() const;  // names
  const absl::Status& removal_status() const { return removal_status_; }
  void Abandon();

 private:
  std::vector<std::unique_ptr<Tier>> tiers_;
  std::vector<TierId> ids_;  // of those
  bool removing_disks_ = false;
  bool removing_mapped_ = false;
  absl::Status removal_status_;  // the first error
};

}  // namespace terrace
