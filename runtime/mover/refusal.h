// What a queue may not have, whatever it waits for. Mover only.
#pragma once

#include "absl/status/status.h"
#include "runtime/motion/resting_tiers.h"
#include "runtime/motion/transfers.h"
#include "runtime/tensor/tensor_life.h"
#include "terrace/request.h"
#include "tiers/byte_tier.h"

namespace terrace {

// Why a queue on `tier` can never have it, or not before a device that is late
// lets go; OK: it can. Unavailable: the tier has failed for good. `tensor` is
// null: there is none of that id.
absl::Status RefusalOf(const Want& want, const Tensor* tensor, const Tier& tier,
                       const Transfers& transfers, const RestingTiers& resting);

}  // namespace terrace
