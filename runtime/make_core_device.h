// A device's memory as the tier above the host's: for Runtime::Create of a GPU,
// for tests of a device that they made.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "base/clock.h"
#include "base/device.h"
#include "policies/eviction.h"
#include "runtime/mover/core.h"
#include "terrace/tier.h"

namespace terrace {

// Takes the budget of `spec`, in whole blocks, of the device's memory at once;
// errors as DeviceSpace::Create. The clock outlives what is made of it.
absl::StatusOr<CoreDevice> MakeCoreDevice(
    std::shared_ptr<Device> device, const TierSpec& spec, Clock& clock,
    std::unique_ptr<EvictionPolicy> eviction);

}  // namespace terrace
