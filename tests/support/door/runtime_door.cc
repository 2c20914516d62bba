#include "tests/support/door/runtime_door.h"

#include <utility>

#include "base/status_macros.h"
#include "runtime/local_parts.h"

namespace terrace {

absl::StatusOr<ReachedRuntime> Reach(const Options& options) {
  ReachedRuntime reached;
  if (runtime_door == nullptr) {
    TERRACE_ASSIGN_OR_RETURN(reached.runtime, Runtime::Create(options));
    return reached;
  }
  TERRACE_ASSIGN_OR_RETURN(LocalRuntimeParts parts,
                           PartsOf(options, kSpillBytes));
  if (spill_door != nullptr) parts.spill = spill_door(*parts.arena);
  TERRACE_ASSIGN_OR_RETURN(std::unique_ptr<LocalRuntime> runtime,
                           LocalRuntime::Start(std::move(parts)));
  return runtime_door(std::move(runtime));
}

}  // namespace terrace
