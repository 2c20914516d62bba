// What the tensors of a runtime have of each tier, as sums that are kept while
// tensors change, so that to read them costs the same with a million tensors as
// with one. Each transition of a tensor takes its own part out and puts it in
// again (tensor_life.cc). Mover only.
#pragma once

#include <cstdint>

#include "absl/container/inlined_vector.h"
#include "tiers/reservation.h"

namespace terrace {

struct TierFill {
  TierId tier = kNoTier;
  int64_t tensors = 0;
  int64_t pinned_bytes = 0;
  // Of what nobody has pinned: newer than what is below, or, below, older than
  // what is in memory; and all else.
  int64_t dirty_bytes = 0;
  int64_t clean_bytes = 0;

  friend bool operator==(const TierFill&, const TierFill&) = default;
};

class TierFills {
 public:
  TierFill Of(TierId tier) const;
  // To be changed.
  TierFill& At(TierId tier);

  // The same of each tier that has anything.
  friend bool operator==(const TierFills& a, const TierFills& b);

 private:
  absl::InlinedVector<TierFill, 4> fills_;  // few
};

}  // namespace terrace
