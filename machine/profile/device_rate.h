// How fast bytes go between memory and a device: both directions, in the pieces
// and as many at a time as a tier's copies have.
#pragma once

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/device.h"
#include "machine/profile/medium_rate.h"

namespace terrace {

// Takes 64 MiB of the device's memory and as much of pinned memory; each
// direction is measured for `time`, and at least three times; the median
// counts. Blocks; one thread. ResourceExhausted: either has not that much. Else
// the first error of the device.
absl::StatusOr<MediumRates> MeasureDevice(Device& device, absl::Duration time);

}  // namespace terrace
