// The only composition root of what works in this process: Options become a
// runtime's parts, which a caller may change before they start.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "base/process.h"
#include "runtime/local_runtime.h"
#include "terrace/options.h"
#include "tiers/disk/disk_file.h"

namespace terrace {

// What a process that has gone left of a runtime: its memory, and the file of
// each path, in their order.
struct KeptParts {
  OwnDescriptor memory_file;
  std::vector<std::unique_ptr<DiskFile>> files;
};

// Opens devices, paths and an engine, and takes the memory. Errors are
// Runtime::Create's. `shared_spill_bytes`: the first memory is of a memory
// file, with addresses for so many bytes beyond the budget
// (tiers/memory/host_arena.h). `kept`: in place of the memory, which has all
// that the options ask for, and of files.
absl::StatusOr<LocalRuntimeParts> PartsOf(
    const Options& options,
    std::optional<int64_t> shared_spill_bytes = std::nullopt,
    std::optional<KeptParts> kept = std::nullopt);

}  // namespace terrace
