// CheckpointCommit::Begin without a copy of the values.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "terrace/checkpoint.h"

namespace terrace {

// The values are written, or copied, before it returns.
absl::StatusOr<std::unique_ptr<CheckpointCommit>> BeginCommit(
    const std::string& directory, const CheckpointValues& values);

}  // namespace terrace
