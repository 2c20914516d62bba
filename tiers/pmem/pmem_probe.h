// What kind of memory a place would be for a tier, for a report. The place is
// not taken: it is neither locked nor marked, and nothing stays in it.
#pragma once

#include <cstddef>
#include <functional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "tiers/pmem/pmem_facts.h"

namespace terrace {

// Of a directory or file all that its file system has, of a DAX device all that
// tensors may have. A place that persists by page only is no error here.
// Unimplemented: a build without libpmem2; Unavailable: PMEM2_FORCE_* is set,
// or bad blocks cannot be read; InvalidArgument: another kind of place;
// NotFound, PermissionDenied; ResourceExhausted: no room for a block. Blocks as
// long as the file system does. Thread-safe.
//
// `look` sees the first bytes of it while they are mapped, and may not write to
// them.
using PmemLook = std::function<void(absl::Span<std::byte> bytes)>;
absl::StatusOr<PmemFacts> ProbePmem(const std::string& place,
                                    const PmemLook& look = nullptr);

}  // namespace terrace
