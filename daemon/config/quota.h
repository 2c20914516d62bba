// What a user, or a job, may have of a host at most.
//
// Plain values.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "daemon/config/toml_tree.h"

namespace terrace {

// A number with the place where a file says it.
struct PlacedCount {
  int64_t count = 0;
  TextPosition position;
};

// What is not set is not limited here: a tier is limited by its budget then,
// and a weight is 1.
struct Quota {
  std::map<std::string, PlacedCount> tier_bytes;  // by TierName, headers too
  std::optional<PlacedCount> arenas;
  std::optional<PlacedCount> connections;
  std::optional<PlacedCount> requests;  // in flight
  // The share of a link that the user, or of its user's that the job, has of
  // those who wait for it.
  std::optional<PlacedCount> weight;

  int64_t weight_count() const {
    return weight.has_value() ? weight->count : 1;
  }
  // Sets what is not set here as it is in `other`.
  void FillFrom(const Quota& other);
};

}  // namespace terrace
