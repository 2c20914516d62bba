// What was found of a place for a tier of persistent memory.
#pragma once

#include <cstdint>
#include <string>

#include "tiers/pmem/persist_domain.h"

namespace terrace {

struct PmemFacts {
  std::string file;         // as errors name it
  std::string file_system;  // "devdax": a DAX device
  StoreGranularity granularity = StoreGranularity::kPage;
  std::string cause;       // of the granularity
  int64_t size_bytes = 0;  // of the tier
  int64_t bad_bytes = 0;   // of these
  // Of the medium, so far; -1: nothing counts them.
  int64_t unsafe_shutdowns = -1;
  // Whether there were any since a job before marked the place. No job trusts
  // what another left, after a crash or not.
  bool lost_power = false;
};

// Of the unsafe shutdowns that a mark has, and those there are now; -1:
// unknown. A count that is smaller, or gone, is another medium's.
constexpr bool LostPower(int64_t marked, int64_t now) {
  return marked >= 0 && now != marked;
}

}  // namespace terrace
