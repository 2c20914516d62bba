// Opens a Runtime over the tiers that were asked for.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "libtorch/offload/place_options.h"
#include "terrace/runtime.h"

namespace terrace {

// Returns a Runtime of `budget_bytes` of memory, or of the device that was
// asked for, which may grow by `growth_bytes`, over the tiers below that were
// asked for, or the error of Runtime::Create.
absl::StatusOr<std::unique_ptr<Runtime>> OpenTiers(const PlaceOptions& asked,
                                                   int64_t budget_bytes,
                                                   int64_t growth_bytes = 0);

}  // namespace terrace
