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
};

}  // namespace terrace
