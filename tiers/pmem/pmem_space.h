// What of a file or device a tier has, in bytes from its beginning.
#pragma once

#include <cstdint>

#include "tiers/extent.h"

namespace terrace {

struct PmemSpace {
  Extent usable;             // by tensors
  int64_t mapped_bytes = 0;  // from 0 on: `usable` is within
};

}  // namespace terrace
