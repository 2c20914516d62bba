// All tiers of a runtime, by their ids. One thread at a time; the tiers outlive
// the list.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "base/check.h"
#include "tiers/byte_tier.h"
#include "tiers/reservation.h"

namespace terrace {

class TierList {
 public:
  // Those of a kind in the order of their numbers.
  void Add(Tier& tier) {
    std::vector<Tier*>& of_kind = OfKind(tier.id().kind);
    TERRACE_CHECK(tier.id().number == static_cast<int>(of_kind.size()));
    of_kind.push_back(&tier);
  }

  Tier& at(TierId id) const {
    return *by_kind_[static_cast<size_t>(id.kind)]
                    [static_cast<size_t>(id.number)];
  }
  const std::vector<Tier*>& all(TierKind kind) const {
    return by_kind_[static_cast<size_t>(kind)];
  }

 private:
  static constexpr size_t kKinds = static_cast<size_t>(TierKind::kDisk) + 1;

  std::vector<Tier*>& OfKind(TierKind kind) {
    return by_kind_[static_cast<size_t>(kind)];
  }

  std::array<std::vector<Tier*>, kKinds> by_kind_;
};

}  // namespace terrace
