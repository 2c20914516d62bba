// How a tier's background tells what became of what it was asked. Shared with
// its tasks, as one that hangs outlives the tier. Thread-safe.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "tiers/reservation.h"

namespace terrace {

// What a tier gained.
struct Grown {
  TierId tier = kNoTier;
  absl::StatusOr<int64_t> gained_bytes;
};
// A tier's file system removed a piece of what killed jobs left.
struct Reclaimed {
  TierId tier = kNoTier;
  bool more = false;
};
// What became of the removal of a tier's file.
struct Removed {
  TierId tier = kNoTier;
  absl::Status status;
};

class TierEvents {
 public:
  virtual void OnTier(Grown event) = 0;
  virtual void OnTier(Reclaimed event) = 0;
  virtual void OnTier(Removed event) = 0;

 protected:
  ~TierEvents() = default;
};

}  // namespace terrace
