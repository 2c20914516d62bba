// Whose pages a tier of memory lies in: they go to others for a while, and come
// back. Ranges are named by their offset in the tier's arena, and are whole
// blocks of 4 KiB.
//
// One thread at a time (the mover).
#pragma once

#include "absl/status/status.h"
#include "tiers/extent.h"

namespace terrace {

class PageSource {
 public:
  virtual ~PageSource() = default;
  // False: some went to others before there was this one.
  virtual bool has_all() const { return true; }
  // Addresses alone: whoever has mapped the range finds zeros.
  virtual void Empty(const Extent& range) = 0;
  // Memory again, before anything is written there. ResourceExhausted: there is
  // none, and the range is empty as before.
  virtual absl::Status Populate(const Extent& range) = 0;
};

}  // namespace terrace
