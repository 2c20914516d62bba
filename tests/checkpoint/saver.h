// What tests/checkpoint's saver program trains, and what it must then have:
// the same numbers on both sides.
#pragma once

#include "tests/checkpoint/job.h"

namespace terrace {

inline constexpr uint64_t kSaverSeed = 2026;
inline constexpr Arrangement kSaverArrangement = {
    .name = "Saver", .files = false, .budget_bytes = 256 << 10};

inline Model SaverModel() { return Model::Mixed(kSaverSeed); }

// "step" of the values.
inline constexpr char kSaverStep[] = "step";

}  // namespace terrace
