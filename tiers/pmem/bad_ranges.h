// Bad blocks of a medium, as a tier's allocator keeps clear of them.
// Thread-safe, stateless.
#pragma once

#include <cstdint>
#include <vector>

#include "tiers/extent.h"

namespace terrace {

// Those that touch `usable`, a range of the same file: from its beginning on,
// in whole blocks (kBlockBytes), in order, without overlap. `found` may be in
// any order.
std::vector<Extent> BadRangesWithin(const std::vector<Extent>& found,
                                    Extent usable);

// The first of them that the range touches; null: none. `ranges` as above.
const Extent* FirstTouched(const std::vector<Extent>& ranges, Extent range);

int64_t TotalBytes(const std::vector<Extent>& ranges);

}  // namespace terrace
