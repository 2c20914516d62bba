// The only composition root of what works in this process: Options become a
// runtime's parts, which a caller may change before they start.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/statusor.h"
#include "runtime/local_runtime.h"
#include "terrace/options.h"

namespace terrace {

// Opens devices, paths and an engine, and takes the memory. Errors are
// Runtime::Create's. `shared_spill_bytes`: the first memory is of a memory
// file, with addresses for so many bytes beyond the budget
// (tiers/memory/host_arena.h).
absl::StatusOr<LocalRuntimeParts> PartsOf(
    const Options& options,
    std::optional<int64_t> shared_spill_bytes = std::nullopt);

}  // namespace terrace
