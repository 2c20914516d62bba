// The tiers that tests have, beside the first memory.
#pragma once

#include "tiers/reservation.h"

namespace terrace {

inline constexpr TierId kHbmTier = {TierKind::kHbm, 0};
inline constexpr TierId kFar0 = {TierKind::kFar, 0};
inline constexpr TierId kFar1 = {TierKind::kFar, 1};
inline constexpr TierId kDisk0 = {TierKind::kDisk, 0};
inline constexpr TierId kDisk1 = {TierKind::kDisk, 1};
inline constexpr TierId kDisk2 = {TierKind::kDisk, 2};

}  // namespace terrace
