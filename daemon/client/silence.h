// How long a daemon has said nothing to its relay: once that is a while, it is
// asked whether it is still there, and once it has not answered for the whole
// patience it counts as stopped. What takes long by itself, as memory that is
// populated, may be allowed for.
//
// One thread at a time. Times are by the clock that the caller reads.
#pragma once

#include <optional>

#include "absl/time/time.h"

namespace terrace {

class Silence {
 public:
  Silence(absl::Time now, absl::Duration patience)
      : patience_(patience), heard_(now) {}

  void OnHeard(absl::Time now) {
    heard_ = now;
    asked_.reset();
  }
  bool IsToBeAsked(absl::Time now) const {
    return !asked_.has_value() && now >= heard_ + UntilAsked();
  }
  void OnAsked(absl::Time now) { asked_ = now; }
  // Everything that was said before `now` has been heard.
  bool HasLasted(absl::Time now, absl::Duration allowed) const {
    return asked_.has_value() && now >= *asked_ + UntilLasted() + allowed;
  }
  // When the next of these is to be looked at.
  absl::Time NextLook(absl::Duration allowed) const {
    return asked_.has_value() ? *asked_ + UntilLasted() + allowed
                              : heard_ + UntilAsked();
  }
  absl::Duration patience() const { return patience_; }

 private:
  absl::Duration UntilAsked() const { return patience_ / 4; }
  absl::Duration UntilLasted() const { return patience_ - UntilAsked(); }

  absl::Duration patience_;
  absl::Time heard_;
  std::optional<absl::Time> asked_;
};

}  // namespace terrace
