// What a tier's background told.
#pragma once

#include <utility>
#include <vector>

#include "tiers/tier_events.h"

namespace terrace {

struct EventLog final : public TierEvents {
  void OnTier(Grown event) override { grown.push_back(std::move(event)); }
  void OnTier(Reclaimed event) override { reclaimed.push_back(event); }
  void OnTier(Removed event) override { removed.push_back(std::move(event)); }

  std::vector<Grown> grown;
  std::vector<Reclaimed> reclaimed;
  std::vector<Removed> removed;
};

}  // namespace terrace
