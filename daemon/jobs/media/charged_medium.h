// A job's far or persistent memory, whose bytes are charged to a quota as it
// grows, and given back once they are the tier's again.
#pragma once

#include <memory>

#include "daemon/jobs/charge.h"
#include "tiers/medium.h"

namespace terrace {

// What the medium has is charged already; nobody else has it. How far it grows
// the quota says, so that what is refused names it.
std::unique_ptr<Medium> MakeChargedMedium(std::shared_ptr<Medium> medium,
                                          std::unique_ptr<Charge> charge);

}  // namespace terrace
