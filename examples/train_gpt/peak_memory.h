// What Linux says about this process.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

namespace train_gpt {

// The most memory the process has had at once, in bytes (VmHWM).
absl::StatusOr<int64_t> PeakResidentBytes();

}  // namespace train_gpt
