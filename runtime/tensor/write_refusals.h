// What the tiers below had against the present contents of one tensor: which
// of them refused it, the last one's error, and whether it has given up until
// it is tried again.
#pragma once

#include <algorithm>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "tiers/reservation.h"

namespace terrace {

class WriteRefusals {
 public:
  void Add(TierId tier, absl::Status error) {
    tiers_.push_back(tier);
    last_ = std::move(error);
  }
  bool Has(TierId tier) const {
    return std::find(tiers_.begin(), tiers_.end(), tier) != tiers_.end();
  }
  int count() const { return static_cast<int>(tiers_.size()); }
  // All of them are asked again.
  void Forget() { tiers_.clear(); }

  // The write-back waits for another try.
  void GiveUp() { gave_up_ = true; }
  void GiveUp(absl::Status error) {
    last_ = std::move(error);
    gave_up_ = true;
  }
  void TryAgain() { gave_up_ = false; }
  // Why it waits; OK: it does not.
  absl::Status error() const { return gave_up_ ? last_ : absl::OkStatus(); }
  bool gave_up() const { return gave_up_; }

 private:
  absl::InlinedVector<TierId, 4> tiers_;
  absl::Status last_;
  bool gave_up_ = false;
};

}  // namespace terrace
